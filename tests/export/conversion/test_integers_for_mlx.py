"""A converted folder and an ONNX bundle of one checkpoint and recipe have the same integers and scales."""

from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from support.bundle_options import WIDE
from support.export.onnx_weights import read_quantized_weights
from support.model.micro import micro_checkpoint

from voxport.export.__main__ import main as export
from voxport.model.families import open_family
from voxport.model.mlx.integers import unpack
from voxport.model.stored_weights import StoredWeights

Weight = tuple[np.ndarray, np.ndarray]  # integers int8 [N, K], scales [N, groups]


def convert(name: str, out: Path, quant: str) -> Path:
    source, options = str(micro_checkpoint(name)), ["--to", "mlx", "--quant", quant, "--dtype", "f32"]
    assert export(["convert", source, str(out), *options]) == 0
    return out


def weights_for_mlx(name: str, folder: Path, pattern: str) -> dict[str, Weight]:
    """The packed weights whose published paths match. q = integer + 2^(bits - 1)."""
    family = open_family(name)
    source = StoredWeights(folder, family, family.config_of(folder))
    content, found = load_file(folder / "model.safetensors"), {}
    for published, tensor in source.tensors.items():
        path = published.removesuffix(".weight")
        if tensor.bits and fnmatchcase(path, pattern):
            integers = unpack(content[tensor.name], tensor.bits).numpy().astype(np.int16)
            scales = content[tensor.name.removesuffix(".weight") + ".scales"].numpy()
            found[path] = ((integers - (1 << (tensor.bits - 1))).astype(np.int8), scales)
    return found


def is_in(weight: Weight, products: list[Weight]) -> bool:
    """Whether consecutive rows of a product are the weight. Products of a bundle have the rows of several
    linears; the scale of a row may be stored once, or for each group.
    """
    integers, scales = weight
    for held, steps in products:
        if held.shape[1] != integers.shape[1]:
            continue
        for start in range(len(held) - len(integers) + 1):
            rows = slice(start, start + len(integers))
            if not np.array_equal(held[start], integers[0]) or not np.array_equal(held[rows], integers):
                continue
            found = steps[rows] if steps.shape[1] == scales.shape[1] else steps[rows, :1]
            if np.array_equal(np.broadcast_to(found, scales.shape), scales):
                return True
    return False


def test_four_bits(bundles: Path, tmp_path: Path) -> None:
    """Backbone and acoustic head of Voxtral-TTS, and its text table of 8 bits."""
    weights = weights_for_mlx("voxtral_tts", convert("voxtral_tts", tmp_path / "w4", "w4"), "*")
    del weights[WIDE.partition("=")[0]]  # a rule of the shared bundle gives it another scheme
    products = read_quantized_weights(bundles / "onnx")
    assert len(weights) > 10
    assert [path for path, weight in weights.items() if not is_in(weight, products)] == []
    integers, scales = weights["layers.0.attention.wq"]
    integers[-1, -1] ^= 1
    assert not is_in((integers, scales), products)


def test_groups_of_128(bundles: Path, tmp_path: Path) -> None:
    """The layer that a rule of the shared bundle gives such groups."""
    path = WIDE.partition("=")[0]
    weights = weights_for_mlx("voxtral_tts", convert("voxtral_tts", tmp_path / "wide", "w4g128"), path)
    assert weights.keys() == {path}
    assert is_in(weights[path], read_quantized_weights(bundles / "onnx"))


def test_four_and_eight_bits_of_qwen3_tts(qwen_bundles: Path, tmp_path: Path) -> None:
    """Talker and code predictor. Their tables stay floats: mlx-audio takes no integers there."""
    weights = weights_for_mlx("qwen3_tts", convert("qwen3_tts", tmp_path / "w4", "w4"), "*")
    products = read_quantized_weights(qwen_bundles / "onnx")
    assert {path.split(".")[1] for path in weights} == {"model", "codec_head", "code_predictor"}
    assert [path for path, weight in weights.items() if not is_in(weight, products)] == []


@pytest.mark.parametrize(("quant", "pattern"), [("w4", "layers.*"), ("w8", "mm_streams_embeddings.*")])
def test_four_and_eight_bits_of_voxtral_realtime(
    realtime_bundles: Path, tmp_path: Path, quant: str, pattern: str
) -> None:
    """The shared bundle has the integers of w4 in its decoder, and those of w8 elsewhere."""
    weights = weights_for_mlx(
        "voxtral_realtime", convert("voxtral_realtime", tmp_path / quant, quant), pattern
    )
    products = read_quantized_weights(realtime_bundles / "onnx")
    assert weights
    assert [path for path, weight in weights.items() if not is_in(weight, products)] == []
