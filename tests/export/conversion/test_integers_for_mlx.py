"""A converted folder and an ONNX bundle of one checkpoint and recipe have the same integers and scales."""

from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from support.bundle_options import WIDE
from support.export.stored_weights import onnx_weights
from support.model.micro import micro_checkpoint

from voxport.export.__main__ import main as export
from voxport.model.inspection import open_family_of
from voxport.model.mlx.tensor_layouts import unpack
from voxport.model.stored_weights import StoredWeights

Weight = tuple[np.ndarray, np.ndarray]  # integers int8 [N, K], scales [N, groups]


def convert(name: str, out: Path, quant: str) -> Path:
    source, options = str(micro_checkpoint(name)), ["--to", "mlx", "--quant", quant, "--dtype", "f32"]
    assert export(["convert", source, str(out), *options]) == 0
    return out


def weights_for_mlx(folder: Path, pattern: str) -> dict[str, Weight]:
    """The packed weights whose published paths match. q = integer + 2^(bits - 1)."""
    family = open_family_of(folder, takes_mlx=True)
    source = StoredWeights(folder, family, family.layout.load_config(folder))
    content, found = load_file(folder / "model.safetensors"), {}
    for published, tensor in source.tensors.items():
        path = published.removesuffix(".weight")
        if tensor.packing and fnmatchcase(path, pattern):
            integers = unpack(content[tensor.name], tensor.packing.bits).numpy().astype(np.int16)
            scales = content[tensor.name.removesuffix(".weight") + ".scales"].numpy()
            found[path] = ((integers - (1 << (tensor.packing.bits - 1))).astype(np.int8), scales)
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


@pytest.mark.parametrize(
    ("family", "bundle", "quant", "pattern", "least"),
    [
        ("voxtral_tts", "bundles", "w4", "*", 10),  # backbone, acoustic head, and a text table of 8 bits
        ("voxtral_tts", "bundles", "w4g128", WIDE.partition("=")[0], 1),  # which a rule gives such groups
        ("qwen3_tts", "qwen_bundles", "w4", "*", 10),  # talker and code predictor; mlx-audio has float tables
        ("voxtral_realtime", "realtime_bundles", "w4", "layers.*", 1),  # the decoder
        ("voxtral_realtime", "realtime_bundles", "w8", "mm_streams_embeddings.*", 1),
    ],
)
def test_both_have_the_same_integers_and_scales(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    family: str,
    bundle: str,
    quant: str,
    pattern: str,
    least: int,
) -> None:
    weights = weights_for_mlx(convert(family, tmp_path / "out", quant), pattern)
    if quant == "w4":
        weights.pop(WIDE.partition("=")[0], None)  # a rule of the shared bundle gives it another scheme
    graphs = sorted((request.getfixturevalue(bundle) / "onnx").glob("*.onnx"))
    products = [product for path in graphs for product in onnx_weights(path)]
    assert len(weights) >= least
    assert [path for path, weight in weights.items() if not is_in(weight, products)] == []
    integers, scales = next(iter(weights.values()))
    integers[-1, -1] ^= 1
    assert not is_in((integers, scales), products)
