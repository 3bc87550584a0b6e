"""Two sets of weights in one folder: equal ones are read, different ones need a choice, none in silence."""

import argparse
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.commands import error_line

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import ExportRequest
from voxport.cli.preflight import open_source_of
from voxport.export.__main__ import main as export
from voxport.export.job import make_job
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.model.__main__ import main as model
from voxport.model.families import open_family
from voxport.model.inspection import inspect_checkpoint
from voxport.model.synthetic.checkpoint import random_checkpoint

QWEN, TTS, REALTIME = "qwen3_tts", "voxtral_tts", "voxtral_realtime"
PUBLISHED = {QWEN: "model.safetensors", TTS: "consolidated.safetensors", REALTIME: "consolidated.safetensors"}
TUNED = "layers.1.attention.wq.weight"


@pytest.fixture
def copies(tmp_path: Path) -> Callable[[str], Path]:
    return lambda family: Path(shutil.copytree(random_checkpoint(family), tmp_path / family))


def write_beside(
    folder: Path, published: str, name: str, change: Callable[[str, torch.Tensor], torch.Tensor]
) -> None:
    tensors = load_file(folder / published)
    save_file({each: change(each, value).contiguous() for each, value in tensors.items()}, folder / name)


def same(name: str, value: torch.Tensor) -> torch.Tensor:
    return value


def tuned(name: str, value: torch.Tensor) -> torch.Tensor:
    """One value of one tensor is another one."""
    if not name.endswith(("layers.1.attention.wq.weight", "layers.1.self_attn.q_proj.weight")):
        return value
    return torch.cat([value[:1] + 0.25, value[1:]])


def export_dry(folder: Path, *more: str) -> int:
    return export(["--target", "onnx", "--checkpoint", str(folder), "--dry-run", *more])


@pytest.mark.slow
@pytest.mark.parametrize("family", [QWEN, TTS, REALTIME])
@pytest.mark.parametrize("is_newer", [True, False])
def test_different_weights_are_refused_whatever_their_dates(
    copies: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
    family: str,
    is_newer: bool,
) -> None:
    folder, name = copies(family), "tuned.safetensors" if family == QWEN else "model.safetensors"
    write_beside(folder, PUBLISHED[family], name, tuned)
    time = (folder / PUBLISHED[family]).stat().st_mtime + (100 if is_newer else -100)
    os.utime(folder / name, (time, time))
    out = folder.with_name("out")
    runs: tuple[Callable[[], int], ...] = (
        lambda: model(["inspect", str(folder)]),
        lambda: export_dry(folder),
        lambda: export(["convert", str(folder), str(out), "--to", "published"]),
    )
    for run in runs:
        assert run() == 2
        line = error_line(capsys)
        assert line.startswith(f"voxport: error: --weights: {folder}: {PUBLISHED[family]}, which published")
        assert f" and {name} differ, first in " in line and "name the file to read" in line
    for chosen in (name, PUBLISHED[family], str(folder / name)):
        assert export_dry(folder, "--weights", chosen) == 0
        assert model(["inspect", str(folder), "--weights", chosen]) == 0
    assert export(["convert", str(folder), str(out), "--to", "published", "--weights", name]) == 0
    converted = load_file(out / PUBLISHED[family])
    for each, value in load_file(folder / name).items():
        assert torch.equal(converted[each], value), "the chosen weights are converted"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equal_weights_are_read_and_named(
    copies: Callable[[str], Path], capsys: pytest.CaptureFixture[str], dtype: torch.dtype
) -> None:
    folder = copies(TTS)
    write_beside(folder, PUBLISHED[TTS], "model.safetensors", lambda name, value: value.to(dtype))
    note = "consolidated.safetensors: read; model.safetensors has no other values for its tensors"
    assert note in inspect_checkpoint(folder)["notes"]
    assert export_dry(folder) == 0
    assert note in capsys.readouterr().err


def test_the_names_of_mlx_audio_are_compared(copies: Callable[[str], Path]) -> None:
    """Its backbone has the names of transformers."""
    folder, mlx = copies(TTS), open_family(TTS).mlx
    tensors = {mlx.name(name): value for name, value in load_file(folder / PUBLISHED[TTS]).items()}
    save_file(tensors, folder / "model.safetensors")
    assert inspect_checkpoint(folder)["loadable"]
    name = mlx.name(TUNED)
    assert name != TUNED
    save_file(tensors | {name: tensors[name] + 1}, folder / "model.safetensors")
    with pytest.raises(UsageError, match=f"differ, first in {name}"):
        inspect_checkpoint(folder)


def rows_in_halves(name: str, value: torch.Tensor) -> torch.Tensor:
    """As transformers orders the rows of queries and keys: the first and second of each pair apart."""
    return torch.cat([value[0::2], value[1::2]]) if ".wq." in name or ".wk." in name else value


def test_unknown_names_are_compared_by_shape_in_any_order_of_rows(copies: Callable[[str], Path]) -> None:
    folder = copies(REALTIME)
    write_beside(folder, PUBLISHED[REALTIME], "model.safetensors", rows_in_halves)
    tensors = {f"other.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    assert inspect_checkpoint(folder)["loadable"]
    name = f"other.{TUNED}"
    save_file(tensors | {name: tuned(name, tensors[name])}, folder / "model.safetensors")
    with pytest.raises(UsageError, match=f"differ, first in {name}"):
        inspect_checkpoint(folder)


def test_a_file_of_another_use_is_no_second_set(copies: Callable[[str], Path]) -> None:
    """Nor is what macOS leaves beside each file on other disks."""
    folder = copies(TTS)
    (folder / "._model.safetensors").write_bytes(b"Mac OS X")
    save_file({"statistics": torch.ones(7, 11, 3)}, folder / "statistics.safetensors")
    assert inspect_checkpoint(folder)["loadable"]


@pytest.mark.parametrize("is_read", [True, False])
def test_a_quantised_copy_is_a_different_set(copies: Callable[[str], Path], is_read: bool) -> None:
    folder = copies(TTS)
    float8 = lambda name, value: value.to(torch.float8_e4m3fn) if name == TUNED else value
    write_beside(folder, PUBLISHED[TTS], "model.safetensors", float8)
    if is_read:
        (folder / "model.safetensors").rename(folder / "float8")
        (folder / PUBLISHED[TTS]).rename(folder / "model.safetensors")
        (folder / "float8").rename(folder / PUBLISHED[TTS])
    with pytest.raises(UsageError, match=f"differ, first in {TUNED}"):
        inspect_checkpoint(folder)
    assert export_dry(folder, "--weights", "model.safetensors") == (0 if is_read else 5)


def shard(folder: Path, name: str, tensors: dict[str, torch.Tensor]) -> None:
    """Two shards and their index, beside what is there."""
    names = {each: f"model-0000{1 + place % 2}-of-00002.safetensors" for place, each in enumerate(tensors)}
    for file in set(names.values()):
        save_file({each: tensors[each] for each in tensors if names[each] == file}, folder / file)
    (folder / f"{name}.index.json").write_text(json.dumps({"weight_map": names}))


def test_shards_of_the_base_beside_a_tuned_file(
    copies: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """As the published training script leaves them. The whole file is read, as by its package.

    A note says so. The name of a shard chooses the base.
    """
    folder = copies(QWEN)
    base = load_file(folder / PUBLISHED[QWEN])
    shard(folder, PUBLISHED[QWEN], base)
    assert export_dry(folder) == 0, "the same weights twice"
    capsys.readouterr()
    save_file({name: tuned(name, value) for name, value in base.items()}, folder / PUBLISHED[QWEN])
    assert export_dry(folder) == 0
    shard_name = "model-00001-of-00002.safetensors"
    note = f"model.safetensors: read, as by published software; the shard {shard_name} is not"
    assert note in capsys.readouterr().err and note in inspect_checkpoint(folder)["notes"]
    for chosen, is_tuned in (((), True), (("model-00002-of-00002.safetensors",), False)):
        source = Source(folder, chosen)
        name = next(each for each in base if each.endswith("layers.1.self_attn.q_proj.weight"))
        assert torch.equal(source.checkpoint.tensor(name), base[name]) != is_tuned
        assert {path for path in source.files if path.startswith("model")} == (
            {"model.safetensors"} if is_tuned else {f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
        )


def test_a_second_codec_is_found(copies: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    folder = copies(QWEN)
    codec = folder / "speech_tokenizer"
    write_beside(codec, "model.safetensors", "other.safetensors", lambda name, value: value * 2)
    assert export_dry(folder) == 2
    assert "model.safetensors, which published software reads, and other.safetensors" in error_line(capsys)
    assert export_dry(folder, "--weights", "speech_tokenizer/other.safetensors") == 0
    files = Source(folder, ["speech_tokenizer/other.safetensors"]).files
    assert "speech_tokenizer/other.safetensors" in files and "model.safetensors" in files


def test_other_weights_that_cannot_be_compared_are_named(copies: Callable[[str], Path]) -> None:
    folder = copies(REALTIME)
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    found = inspect_checkpoint(folder)
    pointer, pickled = (note for note in found["notes"] if not note.startswith("languages:"))
    assert found["loadable"] and "pytorch_model.bin is not read, and not compared" in pickled
    assert "model.safetensors is not read, and not compared: a Git LFS pointer" in pointer
    (folder / "model.safetensors").write_bytes((folder / PUBLISHED[REALTIME]).read_bytes()[:-9])
    problems = inspect_checkpoint(folder)["problems"]
    assert len(problems) == 1 and "model.safetensors: not a complete safetensors file" in problems[0]


@pytest.mark.parametrize("name", ["params.json", "nothing.safetensors", "../voxtral_tts.safetensors", "."])
def test_a_choice_of_no_weights_is_refused(
    copies: Callable[[str], Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    folder = copies(TTS)
    shutil.copy(folder / PUBLISHED[TTS], folder.with_name("voxtral_tts.safetensors"))
    assert export_dry(folder, "--weights", name) == 2
    assert f"--weights {name}: expected a file .safetensors of {folder}" in error_line(capsys)


def test_a_chosen_file_in_another_layout_is_called_what_it_is(
    copies: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copies(REALTIME)
    tensors = load_file(folder / PUBLISHED[REALTIME])
    renamed = {name.replace("attention.", "self_attn."): value for name, value in tensors.items()}
    save_file(renamed, folder / "model.safetensors")
    assert export_dry(folder, "--weights", "model.safetensors") == 5
    assert "model.safetensors: has names of transformers, as layers.0.self_attn." in error_line(capsys)


def given(checkpoint: Path, *weights: str) -> argparse.Namespace:
    """Arguments of a command on a bundle."""
    return argparse.Namespace(checkpoint=checkpoint, weights=weights, adapter=None)


def test_commands_on_a_bundle_read_the_weights_that_it_was_made_from(copies: Callable[[str], Path]) -> None:
    folder = copies(TTS)
    write_beside(folder, PUBLISHED[TTS], "model.safetensors", tuned)
    for name in ("model.safetensors", PUBLISHED[TTS]):
        source = Source(folder, [name])
        job = make_job(resolve(source, ExportRequest()), open_target("onnx"), "tiny")
        assert name in job.source.files
        again = open_source_of(job, given(folder))
        assert again.files == job.source.files
        other = {"model.safetensors": PUBLISHED[TTS], PUBLISHED[TTS]: "model.safetensors"}[name]
        with pytest.raises(UsageError, match="is not the file that the bundle was made from"):
            open_source_of(job, given(folder, other))
