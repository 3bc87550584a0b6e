"""Conversion of weights: there and back, again, in parts, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.export.conversions import (
    FOLDERS,
    WEIGHTS,
    assert_equal,
    change_weights,
    convert,
    rewrite,
    tensors,
)
from support.files import contents

from voxport.export.__main__ import main as export
from voxport.export.conversion import convert as converting
from voxport.model.__main__ import main as model
from voxport.model.families import family_of, open_family
from voxport.model.mlx.tensor_layouts import LAYOUT_KEY, Stored, stored_tensors


def test_there_and_back_is_the_identity(source: Path, converted: Path, tmp_path: Path) -> None:
    assert convert(converted, tmp_path / "back", "--to", "published") == 0
    assert_equal(tensors(tmp_path / "back"), tensors(source))
    for name in ("params.json", "config.json", "speech_tokenizer/config.json"):
        if (source / name).is_file() and (tmp_path / "back" / name).is_file():
            assert json.loads((tmp_path / "back" / name).read_text()) == json.loads(
                (source / name).read_text()
            )
    family = open_family(family_of(source))
    config = family.layout.load_config(source)
    voices, found = (family.layout.voices(folder, config) for folder in (source, tmp_path / "back"))
    assert voices.keys() == found.keys() and all(
        torch.equal(found[name], rows) for name, rows in voices.items()
    )


@pytest.mark.parametrize("to", ["mlx", "published"])
def test_a_converted_folder_converts_to_itself(
    source: Path, converted: Path, tmp_path: Path, to: str
) -> None:
    first = converted if to == "mlx" else tmp_path / "first"
    if to == "published":
        assert convert(source, first, "--to", to) == 0
    assert convert(first, tmp_path / "again", "--to", to) == 0
    assert_same(tmp_path / "again", first)


def assert_same(folder: Path, expected: Path) -> None:
    """Every file, to the byte."""
    found, before = contents(folder), contents(expected)
    assert found.keys() == before.keys()
    assert [name for name in before if found[name] != before[name]] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["voxtral_tts", "voxtral_realtime", "qwen3_tts", "custom_voice"])
def test_a_folder_in_the_layout_of_mlx_keeps_it(tmp_path: Path, name: str) -> None:
    """Also with integers. The published folder has every tensor again, but for weight norms."""
    source = FOLDERS.get(name) or FOLDERS["qwen3_tts"].parent / name
    assert convert(source, tmp_path / "mlx", "--to", "mlx", "--layout", "mlx") == 0
    assert convert(tmp_path / "mlx", tmp_path / "again", "--to", "mlx") == 0
    assert_same(tmp_path / "again", tmp_path / "mlx")
    assert convert(tmp_path / "mlx", tmp_path / "back", "--to", "published") == 0
    if name != "voxtral_tts":
        assert_equal(tensors(tmp_path / "back"), tensors(source))
    assert convert(tmp_path / "mlx", tmp_path / "audio", "--to", "mlx", "--layout", "mlx-audio") == 0
    assert convert(source, tmp_path / "direct", "--to", "mlx") == 0
    if name != "voxtral_tts":
        assert_same(tmp_path / "audio", tmp_path / "direct")
    assert convert(tmp_path / "mlx", tmp_path / "w4", "--to", "mlx", "--quant", "w4") == 0
    assert convert(tmp_path / "w4", tmp_path / "w4 again", "--to", "mlx") == 0
    assert_same(tmp_path / "w4 again", tmp_path / "w4")


def test_a_folder_of_mlx_audio_needs_no_published_configuration(
    source: Path, converted: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(converted, tmp_path / "folder")
    (folder / "params.json").unlink(missing_ok=True)
    family = open_family(family_of(folder))
    assert convert(folder, tmp_path / "back", "--to", "published") == 0
    assert_equal(tensors(tmp_path / "back"), tensors(source))
    assert family.layout.load_config(tmp_path / "back") == family.layout.load_config(source)


def export_says(folder: Path, says: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """A refusal, or nothing."""
    capsys.readouterr()
    code = export(["--checkpoint", str(folder), "--target", "onnx", "--dry-run"])
    assert code == (5 if says else 0)
    assert (says or "") in capsys.readouterr().err


@pytest.mark.slow
def test_a_square_kernel_that_is_written_as_published_has_a_tag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last convolution of the speech tokenizer has 7 columns, and here 7 channels."""
    folder = shutil.copytree(FOLDERS["qwen3_tts"], tmp_path / "square")
    path, name = folder / "speech_tokenizer" / "config.json", "speech_tokenizer.decoder.decoder.6.conv.weight"
    content = json.loads(path.read_text())
    content["decoder_config"]["decoder_dim"] = 7 << len(content["decoder_config"]["upsample_rates"])
    path.write_text(json.dumps(content))
    square = torch.arange(49, dtype=torch.float32).reshape(1, 7, 7)

    def fill(each: str, stored: Stored, tensor: torch.Tensor) -> torch.Tensor:
        return square if each == name else torch.zeros(stored.shape, dtype=tensor.dtype)

    says = "fits the layouts of PyTorch and of MLX"
    change_weights(folder, fill, {"format": "pt"})
    assert convert(folder, tmp_path / "out", "--to", "published") == 5
    assert says in capsys.readouterr().err
    export_says(folder, says, capsys)
    for tag, expected in (("mlx", square.permute(0, 2, 1)), ("pytorch", square)):
        change_weights(folder, lambda name, stored, tensor: tensor, {LAYOUT_KEY: tag})
        assert convert(folder, tmp_path / tag, "--to", "published") == 0
        assert torch.equal(tensors(tmp_path / tag)[name], expected)
        export_says(folder, "the weights are those for MLX" if tag == "mlx" else None, capsys)


@pytest.mark.parametrize("key", FOLDERS)
def test_no_kernel_of_a_known_size_fits_both_layouts(key: str) -> None:
    """So that published folders need no tag."""
    family = open_family(key)
    for size in family.synthetic.sizes:
        config = family.config_of_size(size)
        stored = stored_tensors(family.build_all(config))
        assert any(each.order for each in stored.values())
        assert not [name for name, each in stored.items() if each.is_ambiguous], size


@pytest.mark.parametrize(("dtype", "expected"), [("f32", torch.float32), ("f16", torch.float16)])
def test_another_precision_in_the_published_layout(
    source: Path, tmp_path: Path, dtype: str, expected: torch.dtype
) -> None:
    assert convert(source, tmp_path / "out", "--to", "published", "--dtype", dtype) == 0
    before = tensors(source)
    for name, tensor in tensors(tmp_path / "out").items():
        assert tensor.dtype == expected and torch.equal(tensor, before[name].to(expected)), name
    assert model(["inspect", str(tmp_path / "out")]) == 0


def test_a_value_beyond_half_precision_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "large"
    shutil.copytree(FOLDERS["voxtral_realtime"], folder)
    rewrite(folder / "consolidated.safetensors", lambda content: content["norm.weight"].fill_(1e5))
    assert convert(folder, tmp_path / "out", "--to", "published", "--dtype", "f16") == 5
    assert "norm.weight: a value of 9.98e+04 exceeds F16; use bf16 or f32" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_small_value_is_rounded_and_voices_are_not_cast(tmp_path: Path) -> None:
    """Half precision holds multiples of 6e-8: smaller weights become 0, which is no error."""
    folder = shutil.copytree(FOLDERS["voxtral_tts"], tmp_path / "small")
    rewrite(folder / "consolidated.safetensors", lambda content: content["norm.weight"][:2].fill_(1e-9))
    assert convert(folder, tmp_path / "out", "--to", "published", "--dtype", "f16") == 0
    found = tensors(tmp_path / "out")["norm.weight"]
    assert not found[:2].any() and found[2:].all()
    family = open_family("voxtral_tts")
    config = family.layout.load_config(folder)
    for name, rows in family.layout.voices(folder, config).items():
        after = family.layout.voices(tmp_path / "out", config)[name]
        assert after.dtype == rows.dtype != torch.float16 and torch.equal(after, rows)


def test_large_files_are_split_and_read_again(
    source: Path, converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(converting, "MAX_SHARD", 200_000)
    assert convert(source, tmp_path / "mlx", "--to", "mlx") == 0
    index = json.loads((tmp_path / "mlx" / f"{WEIGHTS}.index.json").read_text())
    parts = sorted((tmp_path / "mlx").glob("model-*-of-*.safetensors"))
    assert len(parts) > 2 and set(index["weight_map"].values()) == {path.name for path in parts}
    whole = load_file(converted / WEIGHTS)
    assert_equal({name: tensor for path in parts for name, tensor in load_file(path).items()}, whole)
    assert convert(tmp_path / "mlx", tmp_path / "back", "--to", "published") == 0
    assert_equal(tensors(tmp_path / "back"), tensors(source))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--to", "published", "--quant", "w4"], "published checkpoints have no integers"),
        (["--to", "published", "--layout", "mlx-audio"], "--layout: is for --to mlx"),
        (["--to", "mlx", "--quant", "w3"], "recipe 'w3' is unknown"),
        (["--to", "mlx", "--quant", "lut4"], "MLX holds integers in groups; use w4, w4g128, w8 or w8g128"),
        (["--to", "mlx", "--quant", "8da4w"], "MLX does not round activations; use w4"),
        (["--to", "onnx"], "invalid choice"),
        ([], "--to"),
    ],
)
def test_options_that_cannot_be_followed(
    tmp_path: Path, options: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(FOLDERS["voxtral_realtime"], tmp_path / "out", *options) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_folder_that_is_not_empty_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert convert(FOLDERS["voxtral_realtime"], tmp_path, "--to", "mlx") == 2
    assert "exists and is not an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_an_export_of_a_folder_of_mlx_audio_says_what_to_do(
    converted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(["--checkpoint", str(converted), "--target", "onnx", "--dry-run"]) == 5
    assert "the weights are those for MLX; first run: voxport convert" in capsys.readouterr().err
