"""`vectors.json`: written by an export, computed by its engine, and by a runner that makes a mistake."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.commands import error_line
from support.export.short_verification import few_calls
from support.model.micro import micro_checkpoint

from voxport.__main__ import main
from voxport.bundle.errors import IntegrityError
from voxport.bundle.manifest import VECTORS, Bundle
from voxport.export.__main__ import main as export
from voxport.export.targets import open_target
from voxport.export.verify.vectors import check_vectors
from voxport.model.families import FAMILIES
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families import open_family, read_constants
from voxport.runtime.vectors import Vectors, choices_of, compare, read_vectors


@pytest.fixture(scope="module", params=FAMILIES)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return exported(request.param, "w8", tmp_path_factory.mktemp("vectors") / "bundle")


def exported(family: str, quant: str, out: Path) -> Bundle:
    arguments = ["--checkpoint", str(micro_checkpoint(family)), "--quant", quant, "--out", str(out)]
    with few_calls():
        assert export(["--target", "onnx", *arguments]) == 0
    return Bundle(out)


def found_of(bundle: Bundle) -> dict[str, list[object]]:
    """What voxport computes, as a runner would write it."""
    workload, constants = open_family(bundle.job.family).vectors, read_constants(bundle.job)
    assert workload
    found = workload.run(open_engine(bundle), bundle, constants, read_vectors(bundle).request)
    return {name: array.tolist() for name, array in found.items()}


def test_an_export_writes_what_its_engine_computes_and_names_where_a_runner_leaves_the_path(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["vectors", str(bundle.folder)]) == 0
    assert all(line.endswith(" equal") for line in capsys.readouterr().out.splitlines())
    assert all(each.passed for each in check_vectors(bundle, open_target("onnx")))
    vectors, found, path = read_vectors(bundle), found_of(bundle), tmp_path / "found.json"
    for expected in vectors.values:
        wrong = np.array(found[expected.name])
        count = 1 + expected.may_differ + expected.values.count(None)
        wrong.reshape(-1)[: count * expected.step : expected.step] += 2 * expected.tolerance or 1
        path.write_text(json.dumps(found | {expected.name: wrong.tolist()}))
        assert main(["vectors", str(bundle.folder), "--check", str(path)]) == 4
        assert f"differs from {expected.name} on: " in error_line(capsys)
    tokens = vectors.request.get("tokens")
    assert not isinstance(tokens, list) or len(tokens) <= 40  # a model without an end fills no cache
    exact = [value for each in vectors.values for value in each.values if not each.tolerance]
    assert sum(value is None for value in exact) <= 0.1 * len(exact)


@pytest.mark.parametrize("family", ["voxtral_realtime", "qwen3_asr"])
def test_rows_at_wrong_positions_are_found(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step writes its row one place behind its own. Only the logits of the last token show it."""
    bundle, run = exported(family, "none", tmp_path / "bundle"), Stream.run

    def run_behind(stream: Stream, component: str, inputs: Arrays) -> Arrays:
        moved = {"position": inputs["position"] + 1} if component == "decode_step" else {}
        return run(stream, component, {**inputs, **moved})

    monkeypatch.setattr(Stream, "run", run_behind)
    (found,) = check_vectors(bundle, open_target("onnx"))
    assert not found.passed and found.detail.startswith("last_logits")


def test_a_few_choices_may_differ_but_not_the_first_of_a_frame() -> None:
    expected = np.arange(300).reshape(100, 3)
    stored = choices_of("codes", expected, expected, is_chosen=True)
    vectors = Vectors(request={}, values=(stored,))
    assert stored.may_differ == 6
    for places, is_equal in (
        ([1, 2, 4, 5, 7, 8], True),
        ([1, 2, 4, 5, 7, 8, 10], False),
        ([3], False),
    ):
        found = expected.copy()
        found.reshape(-1)[places] += 1
        (result,) = compare(vectors, {"codes": found})
        assert (result.text == "") == is_equal


def test_a_runner_that_gives_nothing_and_damaged_vectors_are_one_line(
    bundle: Bundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    for content, text in (
        ("[]", "not a JSON object"),
        ('{"x": 1}', "none of the arrays"),
        ("{", "not a JSON"),
    ):
        path.write_text(content)
        assert main(["vectors", str(bundle.folder), "--check", str(path)]) == 2
        assert text in error_line(capsys)
    name = read_vectors(bundle).values[-1].name
    path.write_text(json.dumps({name: [1, 2]}))
    assert main(["vectors", str(bundle.folder), "--check", str(path)]) == 4
    assert "has 2 values, expected" in error_line(capsys)
    kept = (bundle.folder / VECTORS).read_text()
    try:
        (bundle.folder / VECTORS).write_text(kept[:-20])
        with pytest.raises(IntegrityError, match=VECTORS):
            read_vectors(bundle)
        (bundle.folder / VECTORS).write_text(json.dumps(json.loads(kept) | {"request": {}}))
        assert main(["vectors", str(bundle.folder)]) == 5
        assert "vectors.json: request: KeyError" in error_line(capsys)
    finally:
        (bundle.folder / VECTORS).write_text(kept)


def test_verification_fails_on_a_wrong_value(bundle: Bundle) -> None:
    path = bundle.folder / VECTORS
    kept = path.read_text()
    content = json.loads(kept)
    content["values"][-1]["values"][0] += 1
    try:
        path.write_text(json.dumps(content))
        (found,) = check_vectors(bundle, open_target("onnx"))
        assert not found.passed and found.detail.startswith(content["values"][-1]["name"])
    finally:
        path.write_text(kept)
