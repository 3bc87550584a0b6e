"""The search for scales: integers and scales that lie closer to the weight than plain min-max gives.

Scales are rounded to bfloat16 before anything is measured with them, because XNNPACK stores them so; then every target
holds the same weights. They are kept at or above the smallest normal half, so that Core ML's float16 holds them exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine

from bundle.errors import RecipeError
from quantize.recipe import Scheme

SHRINK = (
    0.95,
    0.9,
    0.85,
    0.8,
    0.75,
    0.7,
)  # clipping tried against min-max; below 0.7 nothing won on normal weights
SMALLEST_SCALE = 2.0**-14
CHUNK = 2**18  # weights that are searched together


@dataclass(frozen=True)
class QuantizedWeight:
    """integers int8 [N, K]; scale float32 [N, K / block], values of bfloat16; squared errors summed over the weight."""

    integers: torch.Tensor
    scale: torch.Tensor
    squared_error: float
    min_max_squared_error: float
    squared_norm: float


def search_scales(weight: torch.Tensor, scheme: Scheme, path: str) -> QuantizedWeight:
    """weight [N, K] of any float dtype, finite. Raises RecipeError when K is no multiple of the group.

    Rows are searched some at a time: each pass over them then finds them in the cache.
    """
    rows, columns = weight.shape
    block = scheme.group or columns
    if columns % block:
        raise RecipeError(
            f"{path}: {columns} inputs are no multiple of the group of {block}; add a rule that keeps it: --quant-rule '{path}=none'"
        )
    integers = torch.empty(rows, columns, dtype=torch.int8)
    scale = torch.empty(rows, columns // block)
    errors = torch.zeros(3, dtype=torch.float64)  # searched, min-max, and the square of the weight
    step = max(1, CHUNK // columns)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        integers[part], scale[part], found = _search(weight[part].float(), block, scheme.range)
        errors += found
    return QuantizedWeight(integers, scale, *errors.tolist())


def _search(
    weight: torch.Tensor, block: int, limits: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """weight float32 [n, K] -> integers [n, K], scales [n, K / block], squared errors and norm float64 [3]."""
    low, high = limits
    rows, columns = weight.shape
    start, _ = choose_qparams_affine(
        weight, MappingType.SYMMETRIC, [1, block], torch.int8, low, high, scale_dtype=torch.float32
    )
    start = start.reshape(rows, -1)
    groups = weight.reshape(rows, -1, block)

    def attempt(scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scale = scale.clamp_min(SMALLEST_SCALE).bfloat16().float()
        integers = (
            (groups * (1 / scale)[..., None]).round_().clamp_(low, high)
        )  # as torchao's quantize_affine, in fewer passes
        return integers, scale, torch.addcmul(groups, integers, scale[..., None], value=-1).square_().sum(-1)

    best_integers, best_scale, best_error = attempt(start)
    min_max_error = best_error.sum(dtype=torch.float64)

    def keep_better(scale: torch.Tensor) -> None:
        nonlocal best_integers, best_scale, best_error
        integers, scale, error = attempt(scale)
        better = error < best_error
        best_integers = torch.where(better[..., None], integers, best_integers)
        best_scale, best_error = (
            torch.where(better, scale, best_scale),
            torch.where(better, error, best_error),
        )

    for factor in SHRINK:
        keep_better(start * factor)
    power = best_integers.square().sum(-1)
    keep_better(
        torch.where(power > 0, (groups * best_integers).sum(-1) / power.clamp_min(1), best_scale).abs()
    )  # least squares
    errors = torch.stack(
        (best_error.sum(dtype=torch.float64), min_max_error, weight.square().sum(dtype=torch.float64))
    )
    return best_integers.to(torch.int8).reshape(rows, columns), best_scale, errors
