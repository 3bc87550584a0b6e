"""Default names of bundles never collide, and a refusal names the options that differ."""

import json
import random
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from voxport.bundle.files import folder_name, link_name
from voxport.bundle.manifest import ExportRequest
from voxport.export import targets
from voxport.export.__main__ import main as export
from voxport.export.job import MAX_NAME, bundle_name, differences, make_job
from voxport.export.resolve import Resolved, Source, resolve
from voxport.export.targets import open_target
from voxport.model.mistral_layout import WEIGHTS
from voxport.model.synthetic.checkpoint import random_checkpoint

REVISION = "5d83992436eae1d760afd27aff78a71d676296fc"
CHOICES: dict[str, dict[str, list[Any]]] = {  # of each family; the first value is the default
    "voxtral_tts": {
        "first_frame": ["prefill", "audio_token"],
        "alibi_slopes": ["mistral", "standard"],
        "euler_steps": [7, 3, 30],
    },
    "voxtral_realtime": {
        "delay_ms": ["480", "480,960", "960,480", "480,80", "80"],
        "streaming": [False, True],
    },
}
COMPONENTS = {"voxtral_tts": "codec", "voxtral_realtime": "audio_encoder"}
RULES = [(), ("*.wq=w8", "*.wo=none"), ("*.wo=none", "*.wq=w8"), ("*.[wW]q=w8",)]


def resolved(source: Source, **request: Any) -> Resolved:
    return resolve(source, ExportRequest(**request))


def name_of(given: Resolved, precision: str | None = None) -> str:
    return bundle_name(given, "tiny", open_target("onnx", precision))


@pytest.fixture(scope="module", params=list(CHOICES))
def source(request: pytest.FixtureRequest) -> Source:
    return Source(random_checkpoint(request.param))


def test_two_exports_that_differ_have_names_that_differ_in_more_than_case(source: Source) -> None:
    random.seed(0)
    options, found = CHOICES[source.family.name], dict[str, Any]()
    default_cache = source.family.default_cache(source.config, source.family.options())
    for _ in range(150):
        override = [(COMPONENTS[source.family.name], random.choice(["none", "w8"]))]
        given = resolved(
            source,
            quant=random.choice(["none", "w8"]),
            quant_for=random.choice([[], override]),
            rules=random.choice(RULES),
            options={name: random.choice(values) for name, values in options.items()},
            cache_length=random.choice([None, default_cache, 64, 128]),
        )
        precision = random.choice(["float32", "float16"])
        decided = (given.recipes, given.options, given.cache_length, precision)
        assert found.setdefault(name_of(given, precision).casefold(), decided) == decided
    assert len(found) > 100


def test_options_at_their_defaults_are_not_in_the_name() -> None:
    source = Source(random_checkpoint("voxtral_tts"))
    defaults = {name: values[0] for name, values in CHOICES["voxtral_tts"].items()}
    given = resolved(source, quant="w8", quant_for=[("codec", "w8")], options=defaults, cache_length=2048)
    assert name_of(given, "float32") == "tiny-onnx-w8"


def test_a_name_is_legible() -> None:
    tts, realtime = (Source(random_checkpoint(family)) for family in CHOICES)
    given = resolved(
        tts, quant="w8", quant_for=[("codec", "none")], options={"euler_steps": 3}, cache_length=64
    )
    assert name_of(given, "float16") == "tiny-onnx-w8-codec-none-euler-steps-3-cache-64-float16"
    given = resolved(realtime, options={"delay_ms": "480,960", "streaming": True})
    assert name_of(given) == "tiny-onnx-none-streaming-delay-ms-480+960"
    for options in ({"streaming": True}, {"delay_ms": "2400"}):  # the default delays depend on streaming
        assert "delay" not in name_of(resolved(realtime, options=options))


def test_a_long_name_is_cut_and_remains_its_own() -> None:
    source = Source(random_checkpoint("voxtral_realtime"))
    delays = ",".join(map(str, range(80, 1201, 80)))
    names = [
        bundle_name(resolved(source, options={"delay_ms": text}), "é" * 80, open_target("onnx", None))
        for text in (delays, delays[:-5])
    ]
    assert names[0] != names[1]
    assert all(len(name.encode()) <= MAX_NAME for name in names)


def test_differences_name_each_option_with_both_values() -> None:
    source, target = Source(random_checkpoint("voxtral_tts")), open_target("onnx", None)
    plain = make_job(resolved(source), target, "tiny")
    other = resolved(source, quant="w8", options={"euler_steps": 3}, cache_length=64)
    assert differences(plain, make_job(other, target, "tiny")) == [
        "quant is none there and w8 here",
        "euler_steps is 7 there and 3 here",
        "cache_length is 2048 there and 64 here",
    ]
    spelled = resolved(source, options={"euler_steps": 7})
    assert differences(plain, make_job(spelled, target, "tiny")) == ["job.request.options.euler_steps"]
    newer = plain.model_copy(update={"tools": {**plain.tools, "torch": "9"}})
    assert differences(plain, newer) == [f"the version of torch is {plain.tools['torch']} there and 9 here"]
    files = dict(plain.source.files)
    files["params.json"] = files["tekken.json"]
    changed = plain.model_copy(update={"source": plain.source.model_copy(update={"files": files})})
    assert differences(plain, changed) == ["params.json of the checkpoint is another file"]


def test_the_dry_run_shows_the_default_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names are checked once."""
    monkeypatch.chdir(tmp_path)
    counted = Mock(wraps=targets.parse_targets)
    monkeypatch.setattr(targets, "parse_targets", counted)
    assert export(["--target", "onnx", "--quant", "w8", "--euler-steps", "3", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("artifacts/voxtral-tts-tiny-onnx-w8-euler-steps-3: would be")
    assert counted.call_count == 1


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (f"hub/models--org--My.Model/snapshots/{REVISION}", "My.Model"),
        (f"hub/models--org--My.Model/snapshots/{REVISION}/", "My.Model"),
        (f"hub/models--org--one--two/snapshots/{REVISION}", "one--two"),
        (f"hub/models--org--name/snapshots/{REVISION}/onnx/w8", "w8"),
        (f"hub/models--alone/snapshots/{REVISION}", "alone"),
        (f"work/snapshots/{REVISION}", REVISION),
        ("models--org--My.Model", "models--org--My.Model"),
        ("plain/", "plain"),
    ],
)
def test_a_checkpoint_of_the_hub_has_the_name_of_its_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, name: str
) -> None:
    folder = tmp_path / path
    folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    for given in (folder, Path("."), Path(f"../{folder.name}"), tmp_path / "link"):
        assert folder_name(given) == name
        assert link_name(given) == ("link" if given.name == "link" else name)


def test_a_bundle_of_a_snapshot_is_called_by_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its files are links to blobs."""
    repository = tmp_path / "hub/models--org--My.Model"
    snapshot, source = repository / "snapshots" / REVISION, random_checkpoint("voxtral_realtime")
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    for number, path in enumerate(sorted(source.iterdir())):
        shutil.copy(path, repository / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    monkeypatch.chdir(snapshot)
    for given in (str(snapshot), "."):
        assert export(["--target", "onnx", "--checkpoint", given, "--dry-run", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["out"] == "artifacts/My.Model-onnx-none"
    assert export(["--target", "onnx", "--checkpoint", ".", "--weights", WEIGHTS, "--dry-run"]) == 0


def test_an_export_that_names_no_recipe_takes_the_default_of_each_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = []
    for quant in ([], ["--quant", "w4"]):
        assert export(["--target", "onnx,coreai", *quant, "--dry-run", "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)
        names += ["-".join(row["out"].split("-")[-2:]) for row in rows]
        assert {graph["recipe"] for graph in rows[1]["graphs"].values()} == {names[-1].split("-")[1]}
    assert names == ["onnx-none", "coreai-w8g32", "onnx-w4", "coreai-w4"]
