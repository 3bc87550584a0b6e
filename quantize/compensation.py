"""Error compensation: later columns of a weight make up for the rounding of earlier ones (GPTQ, Frantar et
al. 2022).

A linear computes x W^T. Its squared error over rows X [R, K] of inputs is tr((W - Q) H (W - Q)^T) with
H = X^T X. If column k is rounded and the columns behind it are free, the error is least if they change by

    -(w_k - q_k) / U_kk * U_k,k+1:      with H^-1 = U^T U, U upper triangular.

So columns are rounded in order, each after the changes that the earlier ones caused.

Few rows say little about products of columns, and a compensation that believes them loses on other rows. So
the correlations of columns are multiplied by 1 - r. r is the estimate of Chen et al. (Shrinkage Algorithms
for MMSE Covariance Estimation, 2010, OAS) for R independent rows, at least `SHRINKAGE`.

All sums are float64. H^-1 amplifies a rounding of 2^-53 by at most 1 / SHRINKAGE, so equal rows give the same
integers with any number of threads, and on other processors unless a weight is that close to a tie.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from voxport.quantize.parallel import map_items
from voxport.quantize.search import nearest_value, search_scales

SHRINKAGE = 0.03  # rows of a sequence are not independent
SMALLEST = 1e-12  # of the mean diagonal: columns of zeros are divided by something
# Columns of one H; wider weights have several, which do not make up for each other. For 3,072 columns, one H
# takes twice the time of three, and leaves 0.5 % less error (normal weights, 1,536 rows).
WIDEST = 1024
WIDEST_GROUP = 128  # columns
LAZY = 32  # columns after which the changes of all later columns are added; they divide every group
# Rows of the weight that are rounded together, at most. With 512, threads wait for each other's Python, which
# takes two to three times as long (weight [4096, 3072], two threads).
ROWS = 2048
PALETTE_ROWS = 128  # a multiple of the rows of every palette
Factor = tuple[int, torch.Tensor]  # first column of an H, and its `inverse_factor`


class Rounder(Protocol):
    """How columns of some rows of a weight are rounded."""

    @property
    def group(self) -> int | None:
        """Columns that are fitted together, if any."""

    def fit(self, first: int, columns: torch.Tensor) -> None:
        """Chooses scales for the columns from `first` on, float64 [n, group], as changed so far."""

    def round(self, column: int, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """float64 [n] -> what is stored [n], and its value float64 [n]."""


class IntegerRounder:
    """Integers with the scales [n, K / block], which are searched anew for each group."""

    def __init__(
        self, scale: torch.Tensor, block: int, limits: tuple[int, int], importance: torch.Tensor
    ) -> None:
        self.group: int | None = block if scale.shape[1] > 1 else None
        self._scale, self._block, self._limits, self._importance = scale, block, limits, importance

    def fit(self, first: int, columns: torch.Tensor) -> None:
        importance = self._importance[first : first + self._block]
        found = search_scales(columns.float(), None, self._limits, importance)
        self._scale[:, first // self._block] = found.scale[:, 0]

    def round(self, column: int, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = self._scale[:, column // self._block].double()
        integers = (values / scale).round_().clamp_(*self._limits)
        return integers, integers * scale


class PaletteRounder:
    """Indices into palettes [n / channels, values] that are fitted before."""

    group: int | None = None

    def __init__(self, palette: torch.Tensor, channels: int) -> None:
        self._palette = palette.repeat_interleave(channels, 0)

    def fit(self, first: int, columns: torch.Tensor) -> None:
        """Palettes stay as they are."""

    def round(self, column: int, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        indices = nearest_value(values[:, None], self._palette)
        return indices[:, 0], self._palette.gather(1, indices.long())[:, 0].double()


def inverse_factor(rows: torch.Tensor) -> torch.Tensor:
    """Inputs [R, K] -> U float64 [K, K], upper triangular, with H^-1 = U^T U for the shrunk H = X^T X / R."""
    x = rows.double()
    gram = x.mT @ x / len(x)
    mean = float(gram.diagonal().mean())
    scale = gram.diagonal().clamp_min(SMALLEST * mean + SMALLEST).sqrt()
    correlation = gram / scale / scale[:, None]
    correlation *= 1 - max(SHRINKAGE, shrinkage(correlation, len(x)))
    correlation.fill_diagonal_(1)
    # C = V V^T with V upper triangular, as the Cholesky factor of C in reverse; so C^-1 = V^-T V^-1
    upper = torch.linalg.cholesky(correlation.flip(0, 1)).flip(0, 1)
    identity = torch.eye(len(upper), dtype=upper.dtype)
    factor: torch.Tensor = torch.linalg.solve_triangular(upper, identity, upper=True) / scale
    return factor


def shrinkage(correlation: torch.Tensor, count: int) -> float:
    """By how much correlations [K, K] of `count` rows are too large, 0 to 1."""
    width, squares = len(correlation), float(correlation.square().sum())
    above = (1 - 2 / width) * squares + width**2
    below = (count + 1 - 2 / width) * (squares - width)
    return min(1.0, above / below) if below > 0 else 1.0


def inverse_factors(rows: torch.Tensor) -> list[Factor]:
    """The factors for inputs [R, K]."""
    step = _even_part(rows.shape[1], WIDEST, WIDEST_GROUP)  # no group is divided
    starts = range(0, rows.shape[1], step)
    found = map_items(lambda start: inverse_factor(rows[:, start : start + step]), starts)
    return list(zip(starts, found, strict=True))


def compensate(
    weight: torch.Tensor, factors: Sequence[Factor], rounder_of: Callable[[slice], Rounder]
) -> torch.Tensor:
    """weight [N, K] of any float dtype -> what is stored, integers [N, K].

    `rounder_of` gets a range of rows of the weight.
    """
    stored = torch.empty(weight.shape, dtype=torch.int16)
    rows = _even_part(len(weight), ROWS, PALETTE_ROWS)

    @torch.no_grad()  # also in other threads
    def run(first: int) -> None:
        place = slice(first, first + rows)
        held, rounder = weight[place].double(), rounder_of(place)
        for start, factor in factors:
            part = held[:, start : start + len(factor)]
            stored[place, start : start + len(factor)] = _round_columns(part, factor, start, rounder)

    for _ in map_items(run, range(0, len(weight), rows)):
        pass
    return stored


def _even_part(size: int, most: int, multiple: int) -> int:
    """The size of parts that are about equal: at most `most`, and a multiple of `multiple`."""
    even = -(-size // -(-size // most))
    return -(-even // multiple) * multiple


def _round_columns(weight: torch.Tensor, factor: torch.Tensor, offset: int, rounder: Rounder) -> torch.Tensor:
    """weight float64 [n, K], whose columns change as compensation goes on -> what is stored [n, K]."""
    stored = torch.empty(weight.shape, dtype=torch.int16)
    for start in range(0, weight.shape[1], LAZY):
        stop = min(start + LAZY, weight.shape[1])
        held = weight[:, start:stop].mT.contiguous()
        errors = torch.empty_like(held)
        for column in range(start, stop):
            if rounder.group and (offset + column) % rounder.group == 0:
                rounder.fit(offset + column, weight[:, column : column + rounder.group])
            values = held[column - start]
            stored[:, column], rounded = rounder.round(offset + column, values)
            torch.div(values - rounded, factor[column, column], out=errors[column - start])
            held[column - start :].addr_(factor[column, column:stop], errors[column - start], alpha=-1)
        weight[:, stop:].addmm_(errors.mT, factor[start:stop, stop:], alpha=-1)
    return stored
