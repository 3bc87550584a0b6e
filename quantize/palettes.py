"""Palettes: a weight is stored as indices into small tables of values, one per group of rows (Core ML)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import nn

from quantize.module import QuantizedModule, SquaredErrors
from quantize.schemes.palette import PaletteScheme

ROUNDS = 20  # of Lloyd's algorithm; after ten rounds the error of normal weights changes by less than 1 %


@dataclass(frozen=True)
class PalettizedWeight:
    """indices uint8 [N, K]; palette float32 [N / channels, 2^bits] with values that float16 holds."""

    indices: torch.Tensor
    palette: torch.Tensor
    errors: SquaredErrors


class PalettizedLinear(QuantizedModule):
    """x [..., K] -> [..., N]. `weight` float32 [N, K] holds the palette values that the indices select."""

    scheme: PaletteScheme

    def __init__(self, indices: torch.Tensor, palette: torch.Tensor, scheme: PaletteScheme):
        super().__init__(scheme)
        self.register_buffer("indices", indices, persistent=False)
        self.register_buffer("palette", palette, persistent=False)
        rows, columns = indices.shape
        values = palette.gather(1, indices.reshape(len(palette), -1).long())
        self.weight = nn.Parameter(values.reshape(rows, columns), requires_grad=False)

    def can_fuse(self, parts: Sequence[nn.Module]) -> bool:
        """Each palette belongs to rows of one part, so fusing parts of one scheme changes no value."""
        return all(getattr(part, "scheme", None) == self.scheme for part in parts)

    def fuse(self, parts: Sequence[Self]) -> Self:
        indices, palettes = (
            torch.cat([part.get_buffer(name) for part in parts]) for name in ("indices", "palette")
        )
        return type(self)(indices, palettes, self.scheme)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


def search_palette(weight: torch.Tensor, bits: int, channels: int) -> PalettizedWeight:
    """weight [N, K] of any float dtype, finite; `channels` divides N.

    Each group of rows takes the better of two palettes: evenly spaced values, or those of Lloyd's algorithm.
    """
    weight = weight.float()
    groups = weight.reshape(-1, channels * weight.shape[1])
    count = 2**bits
    even = torch.linspace(0, 1, count)
    low, high = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    spread = (low + (high - low) * even).half().float()
    found = torch.quantile(groups[:, :: max(1, groups.shape[1] // 65536)], even, dim=1).T.contiguous()
    for _ in range(ROUNDS):
        places = _nearest(groups, found)
        sums = torch.zeros_like(found).scatter_add_(1, places, groups)
        counts = torch.zeros_like(found).scatter_add_(1, places, torch.ones_like(groups))
        found = torch.where(counts > 0, sums / counts.clamp_min(1), found).sort(1).values
    errors = []
    for palette in (spread, found.half().float()):
        places = _nearest(groups, palette)
        errors.append((groups - palette.gather(1, places)).square().sum(1))
    palette = torch.where((errors[1] < errors[0])[:, None], found.half().float(), spread)
    return PalettizedWeight(
        indices=_nearest(groups, palette).to(torch.uint8).reshape(weight.shape),
        palette=palette,
        errors=SquaredErrors(
            searched=float(torch.minimum(*errors).sum(dtype=torch.float64)),
            min_max=float(errors[0].sum(dtype=torch.float64)),
            norm=float(weight.square().sum(dtype=torch.float64)),
        ),
    )


def _nearest(values: torch.Tensor, palette: torch.Tensor) -> torch.Tensor:
    """For values [G, M], the index [G, M] of the nearest of the ascending palette values [G, P]."""
    return torch.searchsorted((palette[:, 1:] + palette[:, :-1]) / 2, values)
