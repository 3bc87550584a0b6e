"""Weights and norms in operators that the Core ML converter translates exactly."""

from collections.abc import Callable
from math import log2
from typing import Any

import torch

from voxport.export.targets.apple import Linear, split_factor
from voxport.export.targets.coreml.tools import Builder, inputs_of, register_torch_op, types
from voxport.quantize.modules import PalettizedLinear

# The only two ranges that the converter takes. They contain the integers of a scheme.
RANGES = {4: (-8, 7), 8: (-128, 127)}
# Rows are scaled to this magnitude before they are squared. Their squares and epsilons then fit into float16.
NORM_PEAK = 8.0


def dequantized(linear: Linear) -> torch.Tensor:
    """The weight of a linear, by an operator that the converter translates to a constant expression."""
    weight: torch.Tensor
    if isinstance(linear, PalettizedLinear):
        weight = torch.ops.voxport.look_up(linear.indices, linear.palette)
    else:
        weight = torch.ops.torchao.dequantize_affine(
            linear.constant, [1, linear.block], linear.scale, None, torch.int8, *RANGES[linear.scheme.bits]
        )
    return weight


def rms_norm(x: torch.Tensor, shape: list[int], weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm in float16. The converter's version does not scale epsilon with the row, and divides 0 by 0 on
    a zero row.

    The converter adds 1e-4 to what it inverts. The error of `gain` cancels out.
    """
    gain = NORM_PEAK / x.abs().amax(-1, keepdim=True).clamp(min=1)
    scaled = x * gain
    return scaled * torch.rsqrt(scaled.square().mean(-1, keepdim=True) + (gain * eps**0.5).square()) * weight


@register_torch_op(torch_alias=["voxport::look_up", "voxport.look_up"])  # type: ignore[untyped-decorator]
def look_up(context: Any, node: Any) -> None:
    """Stores a palettized weight as indices and palettes."""
    indices, palette = (value.val for value in inputs_of(context, node, expected=2))
    dtype = types.nptype_from_builtin(types.string_to_builtin(f"uint{log2(palette.shape[1]):.0f}"))
    tables = palette[:, None, :, None]  # [N / channels, 1, values, 1]
    context.add(Builder.constexpr_lut_to_dense(indices=indices.astype(dtype), lut=tables, name=node.name))


@register_torch_op(override=True)  # type: ignore[untyped-decorator]  # coremltools has no types
def floordiv(context: Any, node: Any) -> None:
    """Division of the sizes of tensors, as integers.

    The converter's version gives a float. Positions that are added to one become float16 in the package, and
    are rounded above 2,048.
    """
    size, divisor = inputs_of(context, node, expected=2)
    context.add(Builder.floor_div(x=size, y=divisor, name=node.name))


def _where_scalars(condition: torch.Tensor, chosen: float, other: float) -> torch.Tensor:
    """`where` with two scalars. The converter gives the result the shape of the scalars."""
    return condition.to(torch.float32) * (chosen - other) + other


# Any: keys are overloads of torch.ops, which torch types as Any
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.rms_norm.default: rms_norm,
    torch.ops.aten.where.Scalar: _where_scalars,
    torch.ops.aten.mul.Tensor: split_factor,
}
