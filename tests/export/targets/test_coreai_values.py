"""Core AI assets compute what their modules do: weights of odd shapes, subnormal ones, packed integers."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coreai.runtime import NDArray
from support.export.coreai_graph import odd_shapes_graph, subnormal_graph

from voxport.bundle.errors import ExportError
from voxport.export.targets.base import Graph
from voxport.export.targets.coreai.lowering import lower_graph
from voxport.export.targets.coreai.read_back import check_package
from voxport.export.targets.coreai.tools import AIModelAsset
from voxport.export.targets.coreai.weights import packed, unpacked


def run(asset: Path, graph: Graph) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The outputs of the only function, executed by Apple's runtime, and the outputs of the module."""
    (x,) = graph.first.example(0).values()

    async def call() -> dict[str, Any]:  # arrays of Core AI's runtime
        async with AIModelAsset.load(asset).executable() as model:
            outputs: Any = await model.load_function(graph.first.name)({"x": NDArray(x)})
            return {name: output.numpy() for name, output in outputs.items()}

    names = (spec.name for spec in graph.first.signature.outputs)
    with torch.no_grad():
        return asyncio.run(call()), dict(zip(names, graph.module(torch.from_numpy(x)), strict=True))


def test_weights_of_odd_shapes_compute_what_the_module_does(tmp_path: Path) -> None:
    """Halves of bytes follow each other across the ends of rows."""
    graph, asset = odd_shapes_graph(), tmp_path / "odd.aimodel"
    lower_graph(graph, asset, "float32")
    check_package(asset, graph, "float32")
    found, expected = run(asset, graph)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-5 * float(values.abs().max()))


def test_subnormal_weights_of_a_last_product_are_exact(tmp_path: Path) -> None:
    """coreai-core 1.0.0b3 widens subnormal constants to other values."""
    graph, asset = subnormal_graph(), tmp_path / "subnormal.aimodel"
    lower_graph(graph, asset, "float16")
    check_package(asset, graph, "float16")
    found, expected = run(asset, graph)
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_packed_integers_are_unpacked(count: int) -> None:
    integers = (np.arange(count) % 16).astype(np.int8)
    assert np.array_equal(unpacked(packed(integers, 4), is_signed=False)[:count], integers)
    assert np.array_equal(unpacked(packed(integers - 8, 4), is_signed=True)[:count], integers - 8)
    assert len(packed(integers, 4)) == -(-count // 2) and packed(integers, 8) is integers


def test_other_widths_are_refused() -> None:
    with pytest.raises(ExportError, match="stores weights of 4 or 8 bits, got 6"):
        packed(np.zeros(4, np.uint8), 6)
