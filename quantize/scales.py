"""The search for scales: integers and scales that are closer to the weight than plain min-max gives.

Candidate scales are rounded to bfloat16 before their error is measured, because XNNPACK stores them in
bfloat16. All targets then hold the same weights. Scales are at least the smallest normal float16, and Core
ML holds them exactly.
"""

from dataclasses import dataclass

import torch
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine

from quantize.module import SquaredErrors

SHRINK = (
    0.95,
    0.9,
    0.85,
    0.8,
    0.75,
    0.7,
)  # factors tried on min-max scales; below 0.7 none won on normal weights
SMALLEST_SCALE = 2.0**-14
CHUNK = 2**18  # number of weights that are searched together


@dataclass(frozen=True)
class ScaledWeight:
    """integers int8 [N, K]; scale float32 [N, K / block] with values of bfloat16."""

    integers: torch.Tensor
    scale: torch.Tensor
    errors: SquaredErrors


def search_scales(weight: torch.Tensor, group: int | None, limits: tuple[int, int]) -> ScaledWeight:
    """weight [N, K] is finite, of any float dtype. `group` divides K (None: a whole row).

    `limits` are the smallest and the largest integer. Rows are searched in chunks that fit the processor's
    cache.
    """
    rows, columns = weight.shape
    block = group or columns
    integers = torch.empty(rows, columns, dtype=torch.int8)
    scale = torch.empty(rows, columns // block)
    errors = torch.zeros(3, dtype=torch.float64)  # as in SquaredErrors
    step = max(1, CHUNK // columns)
    for start in range(0, rows, step):
        part = slice(start, start + step)
        integers[part], scale[part], found = _search(weight[part].float(), block, limits)
        errors += found
    return ScaledWeight(integers, scale, SquaredErrors(*errors.tolist()))


def _search(
    weight: torch.Tensor, block: int, limits: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """weight float32 [n, K] -> integers [n, K], scales [n, K / block], float64 [3] as in SquaredErrors."""
    low, high = limits
    rows, columns = weight.shape
    start, _ = choose_qparams_affine(
        weight, MappingType.SYMMETRIC, [1, block], torch.int8, low, high, scale_dtype=torch.float32
    )
    start = start.reshape(rows, -1)
    groups = weight.reshape(rows, -1, block)

    def attempt(scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scale = scale.clamp_min(SMALLEST_SCALE).bfloat16().float()
        # as torchao's quantize_affine, in fewer passes
        integers = (groups * (1 / scale)[..., None]).round_().clamp_(low, high)
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
    fitted = (groups * best_integers).sum(-1) / power.clamp_min(1)  # least squares
    keep_better(torch.where(power > 0, fitted, best_scale).abs())
    errors = torch.stack(
        (best_error.sum(dtype=torch.float64), min_max_error, weight.square().sum(dtype=torch.float64))
    )
    return best_integers.to(torch.int8).reshape(rows, columns), best_scale, errors
