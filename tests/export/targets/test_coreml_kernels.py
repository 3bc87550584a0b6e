"""Kernels of the Core ML target: equal to the kernels of the model, and finite in half precision."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.export.rounding import float32_bar
from torch import nn

from voxport.export.targets.coreml.kernels import OneHotAttention, TracedLinears, dequantized_linear, rms_norm
from voxport.export.targets.coreml.lowering import _look_up_once
from voxport.model.layers.attention import KVCache, Projected, ReferenceAttention
from voxport.model.layers.rope import RotaryTable
from voxport.quantize.modules import LinearKernel, float_activations, int8_per_token
from voxport.quantize.recipe import find_recipe
from voxport.quantize.schemes import PaletteScheme
from voxport.runtime.mil import Package


@pytest.mark.parametrize(("start", "rows"), [(0, 5), (3, 1), (7, 1)])
def test_one_hot_attention_equals_the_reference(start: int, rows: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(1, rows, 6, 16), torch.randn(1, rows, 2, 16), torch.randn(1, rows, 2, 16)
    caches = [torch.randn(1, 2, 8, 16) for _ in range(2)]
    rotation = RotaryTable(16, 10000.0, 8)(torch.arange(start, start + rows)[None])
    new, position = Projected(q, k, v, rotation), torch.tensor([start])
    copies = KVCache(*(cache.clone() for cache in caches))
    expected = ReferenceAttention("BHSD").cached(new, copies, position)
    found_all = OneHotAttention().cached(new, KVCache(*caches), position)
    for found, reference in zip(found_all, expected, strict=True):
        bar = float32_bar(sums=2, products=16) * float(reference.abs().max())
        torch.testing.assert_close(found, reference, rtol=0, atol=bar)


def test_linears_equal_the_shared_kernels() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(48, 64), torch.randn(2, 3, 64)
    for recipe, same in (("w8", float_activations), ("w4", float_activations), ("8da4w", int8_per_token)):
        scheme = find_recipe(recipe).linears
        assert scheme
        linear: Any = scheme.quantize(weight, "weight", is_table=False).module
        assert torch.equal(dequantized_linear(x, linear), same(x, linear))
        assert dequantized_linear(torch.zeros_like(x), linear).eq(0).all()


def test_a_trace_dequantises_a_weight_once() -> None:
    """Also if it calls a linear several times. The arithmetic equals eager PyTorch."""
    torch.manual_seed(0)
    linears: list[Any] = []
    for recipe in ("w4", "8da4w"):
        scheme = find_recipe(recipe).linears
        assert scheme
        linears.append(scheme.quantize(torch.randn(64, 64), "weight", is_table=False).module)

    class Loop(nn.Module):
        def __init__(self, kernel: LinearKernel) -> None:
            super().__init__()
            self.kernel = kernel

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for linear in linears * 3:
                x = self.kernel(x, linear)
            return x

    x = torch.randn(2, 64)
    program = torch.export.export(Loop(TracedLinears()), (x,), strict=False)
    operators = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert operators.count("torchao.dequantize_affine.default") == len(linears)
    assert operators.count("aten.linear.default") == 3 * len(linears)
    torch.testing.assert_close(program.module()(x), Loop(dequantized_linear)(x))


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 1e-2])
@pytest.mark.parametrize("size", [0.0, 1e-2, 1.0, 3e3])
def test_norms_do_not_overflow_in_half_precision(eps: float, size: float) -> None:
    """Zero rows, rows below epsilon, and rows whose squares overflow.

    Roundings of u = 2^-11 in a result: under the root 2 u (the scaled row, squared), u (the square), u (the
    mean) and u (the sum with epsilon), of which the root leaves half; and u each for the root, the scaled
    row and the product. The least root is 1/125, and a rounding of a subnormal value is up to 2^-25.
    """
    torch.manual_seed(0)
    x, weight = (torch.randn(4, 96) * size).half(), torch.ones(96)
    found = rms_norm(x, [96], weight.half(), eps)
    torch.testing.assert_close(
        found.float(), F.rms_norm(x.float(), (96,), weight, eps), atol=125 * 2**-25, rtol=5.5 * 2**-11
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("graph", "component"),
    [("encoder", "audio_encoder"), ("encoder", "encode_chunk"), ("decoder", "prefill")],
)
def test_positions_are_divided_as_integers(realtime_bundles: Path, graph: str, component: str) -> None:
    """In float16 they would be rounded above 2,048, the 41st second of a recording."""
    package = Package(realtime_bundles / "coreml" / f"{graph}.mlpackage")
    divisions = [op for op in package.function(component).operations if op.type == "floor_div"]
    assert divisions and {op.outputs[0].type.scalar.name for op in divisions} == {"int32"}


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
        self.linears = nn.ModuleList(
            PaletteScheme(4, channels=8).quantize(weight + shift, "w", is_table=False).module
            for shift in (0, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = sum(linear(x) + linear(2 * x) for linear in self.linears)
        return result


def test_a_palette_is_looked_up_once_however_often_its_linear_is_called() -> None:
    module, x = CalledTwice(), torch.randn(3, 8)
    program = torch.export.export(module, (x,), strict=False)
    _look_up_once(program.graph)
    program.graph_module.recompile()
    found = [node for node in program.graph.nodes if node.target is torch.ops.voxport.look_up.default]
    assert len(found) == 2  # one for each linear
    assert torch.equal(program.module()(x), module(x))
