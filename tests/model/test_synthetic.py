"""Synthetic checkpoints: reproducible, in the published format, and made where they are needed."""

import hashlib
import itertools
import json
import multiprocessing
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.files import contents

from voxport.bundle.errors import UsageError
from voxport.model.__main__ import main
from voxport.model.checkpoint import Checkpoint
from voxport.model.families import FAMILIES, open_family
from voxport.model.mistral_layout import WEIGHTS
from voxport.model.synthetic import checkpoint as synthetic
from voxport.model.synthetic.checkpoint import random_checkpoint, write_checkpoint
from voxport.model.voxtral_realtime.config import AUDIO as AUDIO_PART
from voxport.model.voxtral_tts.layouts import MISTRAL
from voxport.model.voxtral_tts.sizes import SIZES
from voxport.model.voxtral_tts.synthetic import SEMANTIC_HEAD


def test_the_same_seed_gives_the_same_bytes_in_any_process(tiny: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "voxport.model", "synth", str(tmp_path / "again")],
        check=True,
        capture_output=True,
    )
    assert contents(tmp_path / "again") == contents(tiny)


def test_another_seed_gives_other_values_of_the_same_form(tiny: Path, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "other", seed=1)
    ours, theirs = contents(tiny), contents(tmp_path / "other")
    assert ours.keys() == theirs.keys()
    different = {name for name in ours if ours[name] != theirs[name]}
    assert different == {WEIGHTS, *(f"voice_embedding/{voice}.pt" for voice in SIZES["tiny"].voices)}


def test_the_bytes_of_an_embedded_checkpoint_match_its_version(cache: Path) -> None:
    for key, version, expected in (
        ("voxtral_tts", 3, "f3759e39c0f74be8"),
        ("voxtral_realtime", 2, "b49a74eebe675e85"),
    ):
        folder = random_checkpoint(key)
        digest = hashlib.sha256(
            b"".join((folder / name).read_bytes() for name in ("params.json", WEIGHTS, "tekken.json"))
        ).hexdigest()
        assert (open_family(key).synthetic.version, digest[:16]) == (version, expected)


def test_a_tensor_does_not_depend_on_others_nor_on_how_many_values_are_made_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for key, name in (
        ("voxtral_tts", SEMANTIC_HEAD),
        ("voxtral_realtime", f"{AUDIO_PART}.audio_language_projection.2.weight"),
    ):
        family = open_family(key)
        config = family.config_of_size("tiny")
        monkeypatch.setattr(synthetic, "BLOCK", 2**22)
        whole = torch.cat(list(synthetic.values(family.synthetic, name, (256, 96), 0, config)))
        monkeypatch.setattr(synthetic, "BLOCK", 1000)
        pieces = list(synthetic.values(family.synthetic, name, (256, 96), 0, config))
        assert len(pieces) > 10
        assert torch.equal(torch.cat(pieces), whole)


def test_inner_widths_below_the_published_size_hold_whole_groups_of_32() -> None:
    for key, size in itertools.product(FAMILIES, ("tiny", "small")):
        for name, shape in synthetic.expected_shapes(open_family(key), size).items():
            if len(shape) == 2 and not any(
                part in name for part in ("input_projection", "embedding_sum", "embed_sum", "t_cond")
            ):
                assert shape[1] % 32 == 0, (size, name, shape)


def test_the_published_size_is_8_gigabytes_with_20_voices() -> None:
    shapes = synthetic.expected_shapes(open_family("voxtral_tts"), "full")
    assert (len(shapes), synthetic.bytes_of(shapes)) == (386, 2 * 4_002_353_392)
    voices = SIZES["full"].voices
    assert (len(voices), sum(voices.values())) == (20, 2920)
    assert list(SIZES["full"].params()["multimodal"]["audio_tokenizer_args"]["voice"].values()) == list(
        range(20)
    )


def test_a_folder_that_is_not_empty_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(UsageError, match="choose another folder") as caught:
        write_checkpoint(tmp_path)
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_file_at_the_output_path_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="choose another folder"):
            write_checkpoint(out)


def test_an_unknown_size_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tiny, micro, small, full"):
        write_checkpoint(tmp_path / "out", size="huge")


def test_a_disk_that_is_too_small_is_an_error_before_any_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 8 * 10**9}))
    with pytest.raises(UsageError, match=r"needs 8\.02 GB, 8\.00 GB are free"):
        write_checkpoint(tmp_path / "out", size="full")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_run_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: OSError | type[KeyboardInterrupt]
) -> None:
    def interrupted(*_: object) -> None:
        raise interruption

    monkeypatch.setattr(synthetic, "_write_weights", interrupted)
    with pytest.raises((KeyboardInterrupt, UsageError)):
        write_checkpoint(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_the_embedded_checkpoint_is_made_once(cache: Path, tiny: Path) -> None:
    folder = random_checkpoint()
    assert contents(folder) == contents(tiny)
    written = (folder / WEIGHTS).stat().st_mtime_ns
    assert random_checkpoint() == folder
    assert (folder / WEIGHTS).stat().st_mtime_ns == written
    assert [path.name for path in (cache / "voxport").iterdir()] == [folder.name]


@pytest.mark.parametrize("damage", ["params.json", "tekken.json", WEIGHTS, "short weights", "voices"])
def test_a_damaged_embedded_checkpoint_is_written_again(cache: Path, tiny: Path, damage: str) -> None:
    folder = random_checkpoint()
    if damage == "short weights":
        (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-2])
    elif damage == "voices":
        voice = next((folder / "voice_embedding").iterdir())
        voice.write_bytes(voice.read_bytes()[:-9])
    else:
        (folder / damage).unlink()
    assert contents(random_checkpoint()) == contents(tiny)


def test_concurrent_processes_all_get_the_embedded_checkpoint(cache: Path, tiny: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        folders = {pool.apply_async(random_checkpoint) for _ in range(2)}
        assert len({result.get(timeout=120) for result in folders}) == 1
    assert contents(random_checkpoint()) == contents(tiny)
    assert len(list((cache / "voxport").iterdir())) == 1


def test_help_needs_no_torch() -> None:
    code = "import sys; sys.argv = ['model', '--help']; from voxport.model.__main__ import main\n"
    code += "try: main()\nexcept SystemExit: print(*sorted(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "synth" in output and "inspect" in output
    assert not {"torch", "numpy", "pydantic"} & set(output.split())


def test_inspect_lists_the_contents_of_a_checkpoint(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["tensors"], summary["dtypes"], summary["tokenizer"]) == (
        len(Checkpoint(MISTRAL.weight_files(tiny)).names),
        ["BF16"],
        True,
    )
    assert summary["voices"] == dict(sorted(SIZES["tiny"].voices.items()))
    assert sum(summary["parameters"].values()) * 2 == synthetic.bytes_of(
        synthetic.expected_shapes(open_family("voxtral_tts"), "tiny")
    )
    assert summary["config"]["dim"] == 96


def test_inspect_without_json_prints_a_table(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tiny)]) == 0
    output = capsys.readouterr()
    assert "neutral_female (17 rows)" in output.out
    assert "109 tensors" in output.out
    assert output.err == ""


def test_synth_prints_the_folder_to_stdout_and_progress_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["synth", str(tmp_path / "out")]) == 0
    output = capsys.readouterr()
    assert output.out == f"{tmp_path / 'out'}\n"
    assert "109 tensors" in output.err


def test_synth_writes_the_named_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synth", str(tmp_path / "out"), "--model", "voxtral-realtime", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["family"] == "voxtral_realtime"
