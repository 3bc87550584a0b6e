"""Kernels of the Core ML target: equal to the kernels of the model, and finite in half precision."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from voxport.export.targets.apple import dequantized_linear
from voxport.export.targets.coreml.kernels import TracedLinears, rms_norm
from voxport.export.targets.coreml.lowering import _look_up_once
from voxport.quantize.modules import LinearKernel
from voxport.quantize.recipe import find_recipe
from voxport.quantize.schemes import PaletteScheme
from voxport.runtime.mil import Package


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
