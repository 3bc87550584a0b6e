"""Decompositions of operators that the converter translates wrongly or that are inexact in float16."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

MAX_FLOAT16 = float(np.finfo(np.float16).max)
# Rows are scaled to this magnitude before they are squared. Their squares and epsilons then fit into float16.
NORM_PEAK = 8.0


def rms_norm(x: torch.Tensor, shape: list[int], weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm in float16. The converter's version does not scale epsilon with the row, and divides 0 by 0 on
    a zero row.

    The converter adds 1e-4 to what it inverts. The error of `gain` cancels out.
    """
    gain = NORM_PEAK / x.abs().amax(-1, keepdim=True).clamp(min=1)
    scaled = x * gain
    return scaled * torch.rsqrt(scaled.square().mean(-1, keepdim=True) + (gain * eps**0.5).square()) * weight


def _where_scalars(condition: torch.Tensor, chosen: float, other: float) -> torch.Tensor:
    """`where` with two scalars. The converter gives the result the shape of the scalars."""
    return condition.to(torch.float32) * (chosen - other) + other


def _multiply(x: torch.Tensor, factor: Any) -> Any:
    """Splits a factor that is inexact in float16, such as 1 / sqrt(128), into the sum of two float16 values.

    `factor` is a number or a tensor. NotImplemented keeps the operator.
    """
    if not isinstance(factor, float) or not x.is_floating_point():
        return NotImplemented
    near = float(np.float16(factor)) if abs(factor) < MAX_FLOAT16 else factor
    rest = float(np.float16(factor - near))
    return x * near + x * rest if rest else NotImplemented


# Any: keys are overloads of torch.ops, which torch types as Any
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.rms_norm.default: rms_norm,
    torch.ops.aten.where.Scalar: _where_scalars,
    torch.ops.aten.mul.Tensor: _multiply,
}
