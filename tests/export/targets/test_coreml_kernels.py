"""Kernels of the Core ML target: equal to the kernels of the model, and finite in half precision."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from voxport.export.targets.apple import dequantized_linear, traced_weights
from voxport.export.targets.coreml.kernels import dequantized, rms_norm
from voxport.quantize.modules import linear_kernel
from voxport.quantize.recipe import find_recipe
from voxport.runtime.mil import Package


class Repeated(nn.Module):
    """Linears of three recipes, each called three times."""

    def __init__(self) -> None:
        super().__init__()
        schemes = [find_recipe(recipe).linears for recipe in ("w4", "8da4w", "lut4")]
        weights = ((scheme, torch.randn(64, 64)) for scheme in schemes if scheme)
        parts = (scheme.quantize(weight, "weight", is_table=False).module for scheme, weight in weights)
        self.linears = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear in [*self.linears] * 3:
            x = linear(x) / 8
        return x


def test_a_trace_makes_a_weight_once_however_often_its_linear_is_called() -> None:
    torch.manual_seed(0)
    module, x = Repeated(), torch.randn(2, 64)
    with traced_weights(module, dequantized):
        program = torch.export.export(module, (x,), strict=False)
    operators = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert operators.count("torchao.dequantize_affine.default") == 2
    assert operators.count("voxport.look_up.default") == 1
    assert operators.count("aten.linear.default") == 9
    with linear_kernel(module, dequantized_linear):
        torch.testing.assert_close(program.module()(x), module(x))


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
