"""Palettes: a weight as places in a small table of values, one table per group of output channels (Core ML's own form)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from bundle.errors import RecipeError
from quantize.recipe import Scheme

ROUNDS = 20  # of Lloyd's algorithm; the error moves by less than 1 % after ten on normal weights


@dataclass(frozen=True)
class PalettizedWeight:
    """indices uint8 [N, K]; palette float32 [N / channels, 2^bits], values of half precision; squared errors as for scales."""

    indices: torch.Tensor
    palette: torch.Tensor
    squared_error: float
    min_max_squared_error: float
    squared_norm: float


class PalettizedLinear(nn.Module):
    """x [..., K] -> [..., N]; `weight` float32 [N, K] is what the indices say."""

    bias: nn.Parameter | None

    def __init__(self, indices: torch.Tensor, palette: torch.Tensor, scheme: Scheme):
        super().__init__()
        self.scheme = scheme
        self.register_parameter("bias", None)
        self.register_buffer("indices", indices, persistent=False)
        self.register_buffer("palette", palette, persistent=False)
        rows, columns = indices.shape
        values = palette.gather(1, indices.reshape(len(palette), -1).long())
        self.weight = nn.Parameter(values.reshape(rows, columns), requires_grad=False)

    def can_stack(self, parts: list[PalettizedLinear]) -> bool:
        return all(part.scheme == self.scheme for part in parts)

    def stack(self, parts: list[PalettizedLinear]) -> PalettizedLinear:
        """One linear with the rows of all parts, in order."""
        indices, palettes = (
            torch.cat([part.get_buffer(name) for part in parts]) for name in ("indices", "palette")
        )
        return PalettizedLinear(indices, palettes, self.scheme)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)


def search_palette(weight: torch.Tensor, scheme: Scheme, path: str) -> PalettizedWeight:
    """weight [N, K] of any float dtype, finite. Per group the better of evenly spaced values and those that Lloyd's algorithm
    finds. Raises RecipeError where N is no multiple of the channels that share a palette."""
    channels = scheme.channels or len(weight)
    weight = weight.float()
    if len(weight) % channels:
        raise RecipeError(
            f"{path}: {len(weight)} outputs are no multiple of the {channels} that share a palette; add a rule: --quant-rule '{path}=none'"
        )
    groups = weight.reshape(-1, channels * weight.shape[1])
    count = 2**scheme.bits
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
        squared_error=float(torch.minimum(*errors).sum(dtype=torch.float64)),
        min_max_squared_error=float(errors[0].sum(dtype=torch.float64)),
        squared_norm=float(weight.square().sum(dtype=torch.float64)),
    )


def _nearest(values: torch.Tensor, palette: torch.Tensor) -> torch.Tensor:
    """Place [G, M] of the nearest of ascending palette values [G, P]."""
    return torch.searchsorted((palette[:, 1:] + palette[:, :-1]) / 2, values)
