"""Integers of MLX: kept by a conversion, cast, quantised again, and listed by the card."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file
from support.export.conversions import FOLDERS, WEIGHTS, convert, rewrite
from support.files import contents
from torch import nn

from voxport.export.conversion.outputs import DTYPES
from voxport.model.families import family_of, open_family
from voxport.model.family import Family, Release
from voxport.model.mlx.layout import quantization_of
from voxport.model.mlx.tensor_layouts import unpack
from voxport.model.stored_weights import RECIPE_KEY

PACKED = "decoder.layers.0.attention.wq"


def test_a_folder_with_integers_converts_to_itself(integers: Path, tmp_path: Path) -> None:
    """Also its configuration, card and hashes."""
    assert convert(integers, tmp_path / "again", "--to", "mlx") == 0
    before, after = contents(integers), contents(tmp_path / "again")
    assert after.keys() == before.keys()
    for name, content in before.items():
        assert after[name] == content, name


def test_integers_are_not_rounded_again(
    integers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(integers, tmp_path / "out", "--to", "mlx", "--quant", "w8") == 2
    assert "has integers already; leave the recipe out" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_integers_of_another_program_are_copied(tmp_path: Path) -> None:
    """They are not symmetric, and have no recipe."""
    folder = tmp_path / "other"
    assert convert(FOLDERS["voxtral_realtime"], folder, "--to", "mlx", "--quant", "w4", "--dtype", "f32") == 0
    rewrite(folder / WEIGHTS, lambda content: content[f"{PACKED}.biases"].add_(0.01), {"format": "mlx"})
    assert convert(folder, tmp_path / "copied", "--to", "mlx") == 0
    before, found = (load_file(each / WEIGHTS)[f"{PACKED}.biases"] for each in (folder, tmp_path / "copied"))
    assert torch.equal(found, before)
    with safe_open(tmp_path / "copied" / WEIGHTS, framework="pt") as file:
        assert RECIPE_KEY not in file.metadata()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_another_precision_keeps_integers(integers: Path, tmp_path: Path, dtype: str) -> None:
    """Scales, biases and floats are cast; words, entries of the configuration and the recipe stay."""
    assert convert(integers, tmp_path / "out", "--to", "mlx", "--dtype", dtype) == 0
    before, after = load_file(integers / WEIGHTS), load_file(tmp_path / "out" / WEIGHTS)
    assert after.keys() == before.keys()
    for name, tensor in before.items():
        expected = tensor if tensor.dtype == torch.uint32 else tensor.to(DTYPES[dtype])
        if not name.endswith(".biases"):  # computed from the rounded scales
            assert after[name].dtype == expected.dtype and torch.equal(after[name], expected), name
    first, second = (
        json.loads((folder / "config.json").read_text()) for folder in (integers, tmp_path / "out")
    )
    assert second["quantization"] == first["quantization"]
    assert "(recipe w4)" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(("scale", "says"), [(1e8, "exceeds float16"), (1e-9, "becomes 0 in float16")])
def test_a_scale_of_a_folder_that_a_precision_does_not_hold_is_named(
    tmp_path: Path, scale: float, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert(FOLDERS["voxtral_realtime"], tmp_path / "w4", "--to", "mlx", "--quant", "w4") == 0
    name = "layers.0.attention.wq"
    rewrite(
        tmp_path / "w4" / WEIGHTS,
        lambda content: content[f"decoder.{name}.scales"].flatten()[:1].fill_(scale),
    )
    assert convert(tmp_path / "w4", tmp_path / "out", "--to", "mlx", "--dtype", "f16") == 5
    error = capsys.readouterr().err
    assert f"{name}.weight: a scale or bias of" in error and says in error


def card_of(folder: Path) -> tuple[dict[str, Any], str]:
    _, head, text = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), text


def test_the_card_of_weights_of_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Converted floats are no other model, so they have no relation to the base."""
    release = Release("owner/model", "apache-2.0")
    monkeypatch.setattr(Family, "release_of", lambda *arguments: release)
    source = FOLDERS["qwen3_tts"]
    assert convert(source, tmp_path / "floats", "--to", "mlx", "--dtype", "f16") == 0
    head, text = card_of(tmp_path / "floats")
    assert (head["license"], head["base_model"]) == ("apache-2.0", "owner/model")
    assert head["library_name"] == "mlx-audio" and "mlx" in head["tags"]
    assert "base_model_relation" not in head and "integers" not in text
    assert "# owner/model, for mlx-audio" in text and "Floats are F16." in text
    assert convert(source, tmp_path / "w4", "--to", "mlx", "--quant", "w4") == 0
    assert card_of(tmp_path / "w4")[0]["base_model_relation"] == "quantized"


def test_the_card_counts_integers_and_what_stays_a_float(integers: Path) -> None:
    entries = json.loads((integers / "config.json").read_text())["quantization"]
    head, text = card_of(integers)
    assert "license" not in head and "base_model" not in head  # not of the published shapes
    packed = sum(isinstance(entry, dict) for entry in entries.values())
    assert f"{packed} layers are quantised (recipe w4): " in text
    counts = [int(count) for count in re.findall(r"(\d+) layers stay floats, because", text)]
    assert sum(counts) == sum(entry is False for entry in entries.values())


FLOATS = {  # a layer that the family keeps as a float, by MLX path
    "voxtral_tts": "acoustic_transformer.semantic_codebook_output",
    "voxtral_realtime": "decoder.layers.0.ada_rms_norm_t_cond.ada_down",
    "qwen3_tts": "talker.text_projection.linear_fc1",
    "custom_voice": "speech_tokenizer.encoder.encoder_transformer.layers.0.mlp.fc1",
}


@pytest.mark.parametrize("name", FLOATS)
def test_every_linear_and_table_is_an_integer_or_a_named_float(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In `config.json`, and with a reason in the result."""
    source = FOLDERS.get(name) or FOLDERS["qwen3_tts"].parent / name
    assert convert(source, tmp_path / "w4", "--to", "mlx", "--quant", "w4", "--json") == 0
    floats = json.loads(capsys.readouterr().out)["floats"]
    assert floats[FLOATS[name]] == "the family keeps them as floats"
    family = open_family(family_of(source))
    entries = quantization_of(tmp_path / "w4")
    root = family.build_root(family.layout.load_config(source))
    names = dict(root.named_parameters())
    for path, module in root.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding) and f"{path}.weight" in names:  # tied: once
            entry = entries[family.mlx.name(f"{path}.weight").removesuffix(".weight")]
            assert isinstance(entry, dict) or entry is False, path
    assert {path for path, entry in entries.items() if entry is False} == floats.keys()
    assert convert(tmp_path / "w4", tmp_path / "again", "--to", "mlx", "--json") == 0
    assert json.loads(capsys.readouterr().out)["floats"] == floats


def test_a_layer_that_no_group_divides_stays_a_float(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """w4g128 needs rows of a multiple of 128; the golden decoder has 96."""
    folder = tmp_path / "out"
    assert convert(FOLDERS["voxtral_realtime"], folder, "--to", "mlx", "--quant", "w4g128", "--json") == 0
    printed = capsys.readouterr()
    floats = json.loads(printed.out)["floats"]
    assert floats[PACKED] == "no group of the recipe divides the inputs"
    count = list(floats.values()).count(floats[PACKED])
    assert f"{count} layers stay floats, because no group of the recipe" in printed.err
    assert "because no group of the recipe divides the inputs" in card_of(folder)[1]


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_integers_of_every_width_are_unpacked(bits: int) -> None:
    """As a stream of bits, the lowest first."""
    expected = np.random.default_rng(bits).integers(0, 2**bits, (3, 64), dtype=np.uint8)
    places = (expected[..., None] >> np.arange(bits)) & 1
    octets = np.packbits(places.reshape(3, -1).astype(np.uint8), axis=1, bitorder="little")
    words = torch.from_numpy(octets.view(np.int32)).view(torch.uint32)
    np.testing.assert_array_equal(unpack(words, bits).numpy(), expected)
