"""What the rounding of activations to integers does to the output of a linear."""

from typing import NamedTuple

import torch

from voxport.quantize.modules import (
    QuantizedLinear,
    WeightFormat,
    float_activations,
    int8_per_block,
    int8_per_token,
)


class RoundingLoss(NamedTuple):
    """How far the output of a linear moves, relative to it, and the scheme of the linear."""

    error: float
    scheme: WeightFormat


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp_min(1e-30))


def rounding_error(linear: QuantizedLinear, x: torch.Tensor) -> float:
    """The larger relative error of both integer arithmetics for inputs x [R, K]."""
    expected = float_activations(x, linear)
    return max(relative_error(kernel(x, linear), expected) for kernel in (int8_per_block, int8_per_token))
