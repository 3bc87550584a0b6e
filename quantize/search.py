"""The search for scales and palettes: closer to the weight than evenly spaced values from min to max.

Candidate scales are rounded to bfloat16 before their error is measured, because XNNPACK stores them in
bfloat16. All targets then hold the same weights. Scales are at least the smallest normal float16, and Core
ML holds them exactly.
"""

from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import pad
from torchao.quantization.quant_primitives import MappingType, choose_qparams_affine

from voxport.quantize.parallel import map_items

# factors tried on min-max scales; below 0.7 none won on normal weights
SHRINK = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
SMALLEST_SCALE = 2.0**-14
SMALLEST_POWER = 1e-30  # of a sum of squares that is divided by
CHUNK = 2**18  # number of weights that are searched together
ROUNDS = 100  # Lloyd's algorithm; a test compares the error of normal weights with the least possible one
Candidate = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # integers, scales, error of each group
Importance = torch.Tensor | None  # float32 [K]: E[x²] of each input column; None: all columns count the same


@dataclass(frozen=True)
class SquaredErrors:
    """Sums of squares over weights w with quantised values q, each times the importance of its column.

    If columns of the input are not correlated, this is the square of the error of the output of a linear.

    searched, min_max: |w - q|² with searched and with plain min-max scales.
    norm: |w|².
    bound: value that `min_max` cannot exceed if each weight is rounded to the nearest stored value. A
        weight is then at most half a step away. Rounding down makes the mean square four times as
        large as rounding to nearest does, 1/3 of a squared step, and exceeds this bound of 1/4.
    """

    searched: float = 0.0
    min_max: float = 0.0
    norm: float = 0.0
    bound: float = 0.0

    def __add__(self, other: "SquaredErrors") -> "SquaredErrors":
        return SquaredErrors(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))

    @property
    def are_plausible(self) -> bool:
        return self.searched <= self.min_max <= self.bound


class ScaledWeight(NamedTuple):
    """integers int8 [N, K]; scale float32 [N, K / block] with values of bfloat16."""

    integers: torch.Tensor
    scale: torch.Tensor
    errors: SquaredErrors


def search_scales(
    weight: torch.Tensor, group: int | None, limits: tuple[int, int], importance: Importance = None
) -> ScaledWeight:
    """weight [N, K] is finite, of any float dtype. `group` divides K (None: a whole row).

    `limits` are the smallest and the largest integer. Rows are searched in chunks that fit the processor's
    cache, as many at the same time as torch has threads.
    """
    rows, columns = weight.shape
    block = group or columns
    integers = torch.empty(rows, columns, dtype=torch.int8)
    scale = torch.empty(rows, columns // block)
    errors = torch.zeros(4, dtype=torch.float64)  # as in SquaredErrors
    step = max(1, CHUNK // columns)

    def search(start: int) -> torch.Tensor:
        part = slice(start, start + step)
        integers[part], scale[part], found = _search(weight[part].float(), block, limits, importance)
        return found

    for found in map_items(search, range(0, rows, step)):
        errors += found
    return ScaledWeight(integers, scale, SquaredErrors(*errors.tolist()))


@torch.no_grad()  # also in other threads
def _search(
    weight: torch.Tensor, block: int, limits: tuple[int, int], importance: Importance
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """weight float32 [n, K] -> integers [n, K], scales [n, K / block], float64 [4] as in SquaredErrors."""
    low, high = limits
    rows, columns = weight.shape
    start, _ = choose_qparams_affine(
        weight, MappingType.SYMMETRIC, [1, block], torch.int8, low, high, scale_dtype=torch.float32
    )
    start = start.reshape(rows, -1)
    groups = weight.reshape(rows, -1, block)
    counts = None if importance is None else importance.reshape(-1, block)

    def total(squares: torch.Tensor) -> torch.Tensor:
        """[n, K / block, block] -> [n, K / block]: sums over the weights of a group."""
        return (squares if counts is None else squares.mul_(counts)).sum(-1)

    def attempt(scale: torch.Tensor) -> Candidate:
        scale = scale.clamp_min(SMALLEST_SCALE).bfloat16().float()
        # as torchao's quantize_affine, in fewer passes
        integers = (groups * (1 / scale)[..., None]).round_().clamp_(low, high)
        return integers, scale, total(torch.addcmul(groups, integers, scale[..., None], value=-1).square_())

    best = attempt(start)
    min_max_error = best[2].sum(dtype=torch.float64)
    # Steps from a weight to its integer: half of one; more at the end of a range that is not symmetric,
    # where bfloat16 may also round the scale down by 2^-9.
    farthest = max(0.5, (high - low) / 2 * (1 + 2**-8) - high)
    count = block if counts is None else counts.sum(-1)
    bound = (count * (farthest * best[1].double()).square()).sum()
    for factor in SHRINK:
        best = _better_groups(best, attempt(start * factor))
    integers, scale, _ = best
    power = total(integers.square())
    fitted = total(groups * integers) / power.clamp_min(SMALLEST_POWER)  # least squares
    integers, scale, error = _better_groups(best, attempt(torch.where(power > 0, fitted, scale).abs()))
    norm = total(groups.square()).sum(dtype=torch.float64)
    errors = torch.stack((error.sum(dtype=torch.float64), min_max_error, norm, bound))
    return integers.to(torch.int8).reshape(rows, columns), scale, errors


def _better_groups(old: Candidate, new: Candidate) -> Candidate:
    """For each group the candidate with the smaller error."""
    better = new[2] < old[2]
    return (
        torch.where(better[..., None], new[0], old[0]),
        torch.where(better, new[1], old[1]),
        torch.where(better, new[2], old[2]),
    )


class PalettizedWeight(NamedTuple):
    """indices uint8 [N, K]; palette float32 [N / channels, 2^bits] with values that float16 holds."""

    indices: torch.Tensor
    palette: torch.Tensor
    errors: SquaredErrors


def search_palette(
    weight: torch.Tensor, bits: int, channels: int, importance: Importance = None
) -> PalettizedWeight:
    """weight [N, K] of any float dtype, finite; `channels` divides N.

    Each group of rows takes the better of two palettes: evenly spaced values, or Lloyd's algorithm's values.
    Groups are searched in chunks, as in `search_scales`.
    """
    groups = weight.detach().reshape(-1, channels * weight.shape[1])
    indices = torch.empty(groups.shape, dtype=torch.uint8)
    palette = torch.empty(len(groups), 2**bits)
    errors = torch.zeros(4, dtype=torch.float64)  # as in SquaredErrors
    step = max(1, CHUNK // groups.shape[1])
    counts = None if importance is None else importance.repeat(channels)

    def search(start: int) -> torch.Tensor:
        part = slice(start, start + step)
        indices[part], palette[part], found = _search_palette(groups[part].float(), 2**bits, counts)
        return found

    for found in map_items(search, range(0, len(groups), step)):
        errors += found
    return PalettizedWeight(indices.reshape(weight.shape), palette, SquaredErrors(*errors.tolist()))


@torch.no_grad()  # also in other threads
def _search_palette(
    groups: torch.Tensor, count: int, counts: Importance
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """groups float32 [n, M] -> indices [n, M], palettes [n, count], float64 [4] as in SquaredErrors.

    `counts` [M] is the importance of each weight.
    """
    low, high = torch.aminmax(groups, dim=1, keepdim=True)
    spread = (low + (high - low) * torch.linspace(0, 1, count)).half().float()
    best, min_max_error = _nearest(groups, spread, counts)
    fitted = _lloyd(groups, count, counts).half().float()
    indices, error = _nearest(groups, fitted, counts)
    better = error < min_max_error
    # half a step, and the rounding of palette values to half precision
    farthest = (high - low) / (count - 1) / 2 + groups.abs().amax(1, keepdim=True) * 2**-11 + 2**-25
    errors = (
        torch.minimum(error, min_max_error).sum(dtype=torch.float64),
        min_max_error.sum(dtype=torch.float64),
        (groups.square() if counts is None else groups.square() * counts).sum(dtype=torch.float64),
        (groups.shape[1] if counts is None else counts.sum()) * farthest.double().square().sum(),
    )
    better = better[:, None]
    return torch.where(better, indices, best), torch.where(better, fitted, spread), torch.stack(errors)


def _lloyd(groups: torch.Tensor, count: int, counts: Importance) -> torch.Tensor:
    """Palettes [n, count], ascending, for groups [n, M]: each value is the mean of those nearest to it.

    In sorted order these are neighbours, so a round needs only where they begin and sums up to there.
    """
    if counts is None:
        # numpy sorts with vector instructions, torch does not
        values = torch.from_numpy(np.sort(groups.numpy(), axis=1))
        sums, powers = (
            _sums(values),
            torch.arange(values.shape[1] + 1, dtype=torch.float64).expand(len(values), -1),
        )
    else:
        values, order = groups.sort(dim=1)
        sums, powers = _sums(values * counts[order]), _sums(counts[order])
    quantiles = torch.linspace(0, values.shape[1] - 1, count).long()
    palette = values[:, quantiles].double()
    for _ in range(ROUNDS):
        ends = torch.searchsorted(values, _thresholds(palette).float(), right=True)
        ends = pad(pad(ends, (1, 0)), (0, 1), value=values.shape[1])
        power, totals = powers.gather(1, ends).diff(dim=1), sums.gather(1, ends).diff(dim=1)
        palette = torch.where(power > 0, totals / power.clamp_min(SMALLEST_POWER), palette)
    return palette.float().sort(1).values


def _sums(values: torch.Tensor) -> torch.Tensor:
    """[n, M] -> float64 [n, M + 1]: sums of the first 0, 1, … M values."""
    return pad(values.cumsum(1, dtype=torch.float64), (1, 0))


def _nearest(
    groups: torch.Tensor, palette: torch.Tensor, counts: Importance = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """For groups [n, M], the index uint8 [n, M] of the nearest of the ascending palette values [n, P], and
    the squared error [n].
    """
    indices = nearest_value(groups, palette)
    squares = (groups - palette.gather(1, indices.long())).square_()
    return indices, (squares if counts is None else squares.mul_(counts)).sum(1)


def nearest_value(groups: torch.Tensor, palette: torch.Tensor) -> torch.Tensor:
    """groups [n, M], ascending palettes [n, P] -> uint8 [n, M]."""
    indices = torch.zeros(groups.shape, dtype=torch.uint8)
    for threshold in _thresholds(palette).split(1, dim=1):  # faster than a binary search for each value
        indices += groups > threshold
    return indices


def _thresholds(palette: torch.Tensor) -> torch.Tensor:
    return (palette[:, 1:] + palette[:, :-1]) / 2
