"""Folders that are damaged or hold more than weights, and what `inspect` prints of a folder."""

import copy
import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.export.conversions import FOLDERS, WEIGHTS, convert, rewrite

from voxport.bundle.errors import IntegrityError
from voxport.export.__main__ import main as export
from voxport.model.families import family_of, open_family

Capture = pytest.CaptureFixture[str]
PACKED, FLOAT = "decoder.layers.0.attention.wq", "decoder.norm"


def both_names(folder: Path) -> None:
    rewrite(
        folder / WEIGHTS,
        lambda content: content.update({"norm.weight": content["decoder.norm.weight"].clone()}),
    )


def without_a_tensor(folder: Path) -> None:
    rewrite(folder / WEIGHTS, lambda content: content.pop("decoder.norm.weight"))


def another_config(folder: Path) -> None:
    params = json.loads((folder / "params.json").read_text())
    (folder / "params.json").write_text(json.dumps(params | {"hidden_dim": 128}))


def scales_without_integers(folder: Path) -> None:
    rewrite(folder / WEIGHTS, lambda content: content.update({f"{PACKED}.scales": torch.ones(96, 3)}))


def integers(folder: Path, **parts: torch.Tensor) -> None:
    """Packed integers, with `scales` and `biases` if they are given."""
    words = torch.zeros(96, 12, dtype=torch.int32).view(torch.uint32)
    added = {f"{PACKED}.{end}": part for end, part in {"weight": words, **parts}.items()}
    rewrite(folder / WEIGHTS, lambda content: content.update(added))


def integers_without_scales(folder: Path) -> None:
    integers(folder)


def scales_of_integers(folder: Path) -> None:
    integers(folder, scales=torch.zeros(96, 3, dtype=torch.int32), biases=torch.ones(96, 3))


def integers_without_biases(folder: Path) -> None:
    integers(folder, scales=torch.ones(96, 3))


def floats_with_biases(folder: Path) -> None:
    integers(folder, scales=torch.ones(96, 3, dtype=torch.uint8), biases=torch.ones(96, 3))


def floats_in_other_groups(folder: Path) -> None:
    integers(folder, scales=torch.ones(96, 2, dtype=torch.uint8))


def floats_that_are_not_finite(folder: Path) -> None:
    """A scale of nvfp4 that is no number."""
    integers(folder, scales=torch.full((96, 6), 127, dtype=torch.uint8))
    entry = {"group_size": 16, "bits": 4, "mode": "nvfp4"}
    of_config(lambda content: content.update(quantization={**entry, PACKED: entry}))(folder)


def biases_of_another_dtype(folder: Path) -> None:
    integers(folder, scales=torch.ones(96, 3, dtype=torch.bfloat16), biases=torch.ones(96, 3))


def one_name_in_two_shards(folder: Path) -> None:
    content = load_file(folder / WEIGHTS)
    shards = {
        "a.safetensors": dict(list(content.items())[:40]),
        "b.safetensors": {name: 2 * tensor for name, tensor in list(content.items())[39:]},
    }
    for name, part in shards.items():
        save_file(part, folder / name)
    (folder / WEIGHTS).unlink()
    table = {name: shard for shard, part in shards.items() for name in part}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": table}))


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 143320776\n"


def pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text(POINTER)


def pointer_in_place_of_the_configuration(folder: Path) -> None:
    (folder / "params.json").unlink()
    (folder / "config.json").write_text(POINTER)


def published_beside_mlx(folder: Path) -> None:
    """As mlx-audio's own conversion leaves them, and then one of the two was tuned."""
    tensors = load_file(FOLDERS["voxtral_realtime"] / "consolidated.safetensors")
    save_file(tensors | {"norm.weight": tensors["norm.weight"] + 0.5}, folder / "consolidated.safetensors")


def empty_config(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def no_sections(folder: Path) -> None:
    (folder / "params.json").unlink()
    (folder / "config.json").write_text('{"model_type": "voxtral_realtime"}')


def section_that_is_no_object(folder: Path) -> None:
    (folder / "params.json").unlink()
    of_config(lambda content: content.update({"encoder_args": [1]}))(folder)


def of_config(change: Callable[[Any], object]) -> Callable[[Path], None]:
    """A damage to `config.json`."""

    def damage(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        change(content)
        (folder / "config.json").write_text(json.dumps(content))

    return damage


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (both_names, "are both norm.weight; the folder was converted in part"),
        (without_a_tensor, "tensor norm.weight missing, also as decoder.norm.weight"),
        (another_config, "shape [160, 96], expected [128, 96] from the configuration"),
        (scales_without_integers, "belongs to no packed weight"),
        (integers_without_scales, "packed integers without decoder.layers.0.attention.wq.scales"),
        (integers_without_biases, f"packed integers without {PACKED}.biases"),
        (floats_with_biases, f"{PACKED}.scales has dtype U8, expected one of BF16"),
        (floats_in_other_groups, "are not those of [96, 96] as floats of MLX in groups of 16, 32"),
        (floats_that_are_not_finite, f"tensor {PACKED}.weight: 4 bits in groups of 16 (nvfp4) give values"),
        (scales_of_integers, "decoder.layers.0.attention.wq.scales has dtype I32, expected one of BF16"),
        (biases_of_another_dtype, "scales are BF16 and biases F32, expected one dtype"),
        (published_beside_mlx, "consolidated.safetensors, which published software reads, and model.safete"),
        (empty_config, "model_type: None, expected 'voxtral_realtime'"),
        (one_name_in_two_shards, "also in"),
        (pointer, "git lfs pull"),
        (pointer_in_place_of_the_configuration, "config.json: a Git LFS pointer instead of the content"),
        (no_sections, "config.json"),
        (section_that_is_no_object, "config.json: encoder_args: holds a list, expected an object"),
    ],
)
def test_a_damaged_folder_is_one_clear_line(
    realtime: Path, tmp_path: Path, damage: Callable[[Path], None], says: str, capsys: Capture
) -> None:
    damage(realtime)
    capsys.readouterr()
    assert convert(realtime, tmp_path / "out", "--to", "published") in (2, 5)
    error = capsys.readouterr().err
    assert says in error and "Traceback" not in error
    assert not (tmp_path / "out").exists()


def test_export_refuses_a_folder_with_weights_twice(realtime: Path, tmp_path: Path, capsys: Capture) -> None:
    """The published ones are not taken in silence."""
    published_beside_mlx(realtime)
    shutil.copy(FOLDERS["voxtral_realtime"] / "params.json", realtime)
    assert export(["--checkpoint", str(realtime), "--target", "onnx", "--out", str(tmp_path / "b")]) == 2
    assert "--weights: " in (error := capsys.readouterr().err) and "consolidated.safetensors" in error
    assert not (tmp_path / "b").exists()
    for name in ("consolidated.safetensors", "params.json"):
        shutil.copy(FOLDERS["voxtral_realtime"] / name, realtime)
    assert export(["--checkpoint", str(realtime), "--target", "onnx", "--dry-run"]) == 0, "equal weights"
    assert "model.safetensors has no other values for its tensors" in capsys.readouterr().err


def places(content: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every value of an object, its own first."""
    yield path
    for key, value in content.items() if isinstance(content, dict) else ():
        yield from places(value, (*path, key))


@pytest.mark.parametrize("value", [3, None, [], [1], "text", {}, {"a": 1}, -1, True, 1e308])
def test_any_value_in_a_configuration_is_read_or_refused(converted: Path, tmp_path: Path, value: Any) -> None:
    """Without the published configuration."""
    family = open_family(family_of(converted))
    content = json.loads((converted / "config.json").read_text())
    for name in ("speech_tokenizer/config.json", "generation_config.json"):
        if (converted / name).is_file():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            shutil.copy(converted / name, tmp_path / name)
    refused = 0
    for *path, last in filter(None, places(content)):
        changed = copy.deepcopy(content)
        functools.reduce(lambda part, key: part[key], path, changed)[last] = value
        (tmp_path / "config.json").write_text(json.dumps(changed))
        try:
            family.mlx.load_config(tmp_path)
        except IntegrityError:
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda content: content["decoder"].update(hidden_dim=128),
            "decoder.hidden_dim: 128, expected 160 as in params.json",
        ),
        (lambda content: content.update(model_type="qwen3_tts"), "model_type: 'qwen3_tts', expected"),
        (
            lambda content: content["quantization"][PACKED].update(bits=8),
            f"quantization.{PACKED}: 8 bits in groups of 32, expected 4 bits in groups of 32",
        ),
        (
            lambda content: content["quantization"][PACKED].update(group_size=64),
            "4 bits in groups of 64, expected 4 bits in groups of 32",
        ),
        (
            lambda content: content["quantization"][PACKED].update(mode="mxfp5"),
            "4 bits in groups of 32 (mxfp5), expected 4 bits in groups of 32 as the file of weights has",
        ),
        (  # MLX takes 64 for a group that an entry leaves out, whatever the others have
            lambda content: content["quantization"][PACKED].pop("group_size"),
            "4 bits in groups of 64, expected 4 bits in groups of 32",
        ),
        (
            lambda content: (content["quantization"].pop(PACKED), content["quantization"].update(bits=8)),
            f"quantization.{PACKED}: 8 bits",
        ),
        (
            lambda content: content["quantization"].update({PACKED: False}),
            f"quantization.{PACKED}: False, expected 4 bits in groups of 32",
        ),
        (
            lambda content: content["quantization"].update({FLOAT: {"group_size": 32, "bits": 4}}),
            f"quantization.{FLOAT}: 4 bits in groups of 32, and the layer is not packed",
        ),
        (lambda content: content.pop("quantization"), "quantization: missing, and"),
        (lambda content: content.update(quantization=[4]), "quantization: holds a list, expected an object"),
    ],
)
def test_a_wrong_configuration_of_a_folder_with_integers(
    tmp_path: Path, change: Callable[[Any], object], says: str, capsys: Capture
) -> None:
    folder = tmp_path / "w4"
    assert convert(FOLDERS["voxtral_realtime"], folder, "--to", "mlx", "--quant", "w4") == 0
    of_config(change)(folder)
    for to in ("mlx", "published"):
        capsys.readouterr()
        assert convert(folder, tmp_path / "out", "--to", to) == 5
        assert says in capsys.readouterr().err


def test_entries_that_another_program_leaves_out(tmp_path: Path) -> None:
    """mlx-audio takes the general bits and group for layers without an entry, and for `true`."""
    folder = tmp_path / "w4"
    assert convert(FOLDERS["qwen3_tts"], folder, "--to", "mlx", "--quant", "w4") == 0

    def shorten(content: Any) -> None:
        entries = content["quantization"]
        general = {key: entries[key] for key in ("group_size", "bits", "mode")}
        usual = [path for path, entry in entries.items() if entry == general]
        content["quantization"] = {key: entry for key, entry in entries.items() if key not in usual[1:]}
        content["quantization"][usual[0]] = True
        content["quantization_config"] = content["quantization"]  # of older programs

    of_config(shorten)(folder)
    for to in ("mlx", "published"):
        assert convert(folder, tmp_path / to, "--to", to) == 0
        assert "quantization_config" not in json.loads((tmp_path / to / "config.json").read_text())


def test_two_files_of_one_voice(tmp_path: Path, capsys: Capture) -> None:
    folder = shutil.copytree(FOLDERS["voxtral_tts"], tmp_path / "source")
    voice = next((folder / "voice_embedding").glob("*.pt"))
    save_file({"embedding": torch.load(voice, weights_only=True)}, voice.with_suffix(".safetensors"))
    says = f"{voice}: the voice {voice.stem} also has the file {voice.stem}.safetensors, expected one"
    assert convert(folder, tmp_path / "out", "--to", "mlx") == 5
    assert says in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_buffers_that_a_model_computes_are_dropped_and_named(
    realtime: Path, tmp_path: Path, capsys: Capture
) -> None:
    names = ["decoder.layers.0.attention.rope.inv_freq", "encoder.position_ids"]
    rewrite(realtime / WEIGHTS, lambda content: content.update({name: torch.arange(4) for name in names}))
    before = load_file(realtime / WEIGHTS).keys()
    capsys.readouterr()
    assert convert(realtime, tmp_path / "out", "--to", "mlx", "--json") == 0
    result = capsys.readouterr()
    assert json.loads(result.out)["dropped"] == names
    assert all(f"{name}: dropped, a model computes it" in result.err for name in names)
    assert load_file(tmp_path / "out" / WEIGHTS).keys() == before - set(names)
