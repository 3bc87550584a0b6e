"""Weights that MLX packs: read, written and copied to the bit, in every mode, with every number of bits."""

import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from support.export.conversions import convert, tensors
from support.files import contents
from support.model.micro import micro_checkpoint

from voxport.export.__main__ import main
from voxport.export.conversion import outputs
from voxport.model.inspection import open_family_of
from voxport.model.mlx.layout import BITS, FLOATS, GROUPS, Packing
from voxport.model.mlx.tensor_layouts import dequantized
from voxport.model.stored_weights import StoredWeights

WEIGHTS = "model.safetensors"
mx.set_default_device(mx.cpu)


def to_torch(values: mx.array) -> torch.Tensor:
    """Floats become float32, integers stay."""
    is_float = mx.issubdtype(values.dtype, mx.floating)
    return torch.from_numpy(np.array(values.astype(mx.float32) if is_float else values))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_integers_of_every_width_and_group_become_what_mlx_computes(dtype: str) -> None:
    weight = mx.random.normal((5, 256), key=mx.random.key(0)).astype(getattr(mx, dtype))
    for packing in (Packing(bits, group) for bits in BITS for group in GROUPS):
        words, scales, biases = mx.quantize(weight, packing.group, packing.bits)
        assert (tuple(words.shape), tuple(scales.shape)) == packing.shapes((5, 256))
        sides = [to_torch(each).to(getattr(torch, dtype)) for each in (scales, biases)]
        found = dequantized(to_torch(words), sides[0], sides[1], packing)
        expected = mx.dequantize(words, scales, biases, packing.group, packing.bits)
        assert torch.equal(found.float(), to_torch(expected)), packing


@pytest.mark.parametrize("packing", FLOATS, ids=str)
def test_every_scale_and_value_of_the_float_modes_is_that_of_mlx(packing: Packing) -> None:
    """Every byte of a scale with values of every kind; those that are not finite are not compared."""
    words = np.random.default_rng(0).integers(0, 2**32, (256, 256 * packing.bits // 32), dtype=np.uint32)
    scales = np.arange(256, dtype=np.uint8)[:, None].repeat(256 // packing.group, axis=1)
    found = dequantized(torch.from_numpy(words), torch.from_numpy(scales), None, packing)
    expected = to_torch(
        mx.dequantize(mx.array(words), mx.array(scales), None, packing.group, packing.bits, packing.mode)
    )
    assert torch.equal(found.isfinite(), expected.isfinite())
    assert found.isfinite().float().mean() > 0.9 and found.dtype == torch.bfloat16
    assert torch.equal(found.float()[expected.isfinite()], expected[expected.isfinite()])


QUANTS = {  # the packing of linears; tables and the code predictor have 8 bits at least
    "affine1g32": ("1 bits in groups of 32", "8 bits in groups of 32"),
    "affine3g32": ("3 bits in groups of 32", "8 bits in groups of 32"),
    "affine6g32": ("6 bits in groups of 32", "8 bits in groups of 32"),
    "affine8": ("8 bits in groups of 64", "8 bits in groups of 64"),
    "mxfp4": ("4 bits in groups of 32 (mxfp4)", "8 bits in groups of 32 (mxfp8)"),
    "nvfp4": ("4 bits in groups of 16 (nvfp4)", "8 bits in groups of 32 (mxfp8)"),
    "mxfp8": ("8 bits in groups of 32 (mxfp8)", "8 bits in groups of 32 (mxfp8)"),
}


@pytest.mark.parametrize("quant", QUANTS)
@pytest.mark.parametrize("name", ["voxtral_tts", "voxtral_realtime", "qwen3_tts"])
def test_a_checkpoint_is_packed_by_mlx_and_comes_back_as_what_mlx_computes(
    tmp_path: Path,
    name: str,
    quant: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The words and scales are those of `mx.quantize`, and a second conversion copies the folder."""
    monkeypatch.setattr(outputs, "CHUNK", 5000)  # several for a weight
    source, folder = micro_checkpoint(name), tmp_path / "packed"
    assert convert(source, folder, "--to", "mlx", "--quant", quant) == 0
    assert convert(folder, tmp_path / "back", "--to", "published") == 0
    floats, back, packings = tensors(source), tensors(tmp_path / "back"), set()
    stored: Any = mx.load(str(folder / WEIGHTS))
    family = open_family_of(folder, takes_mlx=True)
    for key, found in StoredWeights(folder, family, family.layout.load_config(folder)).tensors.items():
        if not found.packing:
            assert torch.equal(back[key], floats[key]), key
            continue
        packings.add(str(found.packing))
        bits, group, mode = found.packing
        path, weight = found.name.removesuffix("weight"), mx.array(floats[key].float().numpy())
        expected = mx.quantize(weight.astype(mx.bfloat16), group, bits, mode)
        parts = [stored[path + end] for end in ("weight", "scales", "biases") if path + end in stored]
        assert all(mx.array_equal(*pair) for pair in zip(parts, expected, strict=True)), key
        values = mx.dequantize(*expected, group_size=group, bits=bits, mode=mode)
        assert back[key].dtype == torch.bfloat16 and torch.equal(back[key].float(), to_torch(values)), key
    assert packings == {*QUANTS[quant]}
    assert main(["inspect", str(folder)]) == 5
    assert "first run: voxport convert FOLDER OUT --to published" in capsys.readouterr().err
    assert convert(folder, tmp_path / "again", "--to", "mlx") == 0
    assert contents(tmp_path / "again") == contents(folder)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("mlx", "affine7"), "affine7: MLX has 1, 2, 3, 4, 5, 6, 8 bits in groups of 32, 64, 128"),
        (("mlx", "affine4g16"), "affine4g16: MLX has 1, 2, 3, 4, 5, 6, 8 bits in groups of 32, 64, 128"),
        (("published", "nvfp4"), "nvfp4: published checkpoints have no integers; leave it out"),
    ],
)
def test_what_mlx_cannot_compute_is_one_line(
    tmp_path: Path, options: tuple[str, str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    to, quant = options
    assert convert(micro_checkpoint("voxtral_tts"), tmp_path / "out", "--to", to, "--quant", quant) == 2
    assert says in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_without_the_package_the_line_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mlx", None)
    assert convert(micro_checkpoint("voxtral_tts"), tmp_path / "out", "--to", "mlx", "--quant", "mxfp4") == 2
    assert "mxfp4: MLX computes it, and the package mlx is not installed" in capsys.readouterr().err
