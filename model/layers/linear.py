"""Products over the same input, joined into one: fewer calls, and activations are read and quantised once."""

from __future__ import annotations

import torch
from torch import nn


class SideBySide(nn.Module):
    """Products that cannot share a weight, because they are held in different schemes: `[..., in] -> [..., sum of out]`."""

    def __init__(self, parts: list[nn.Module]):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


def joined(parts: list[nn.Module]) -> nn.Module:
    """One module that gives the outputs of all parts, concatenated: their rows stacked where they are of one kind.

    A quantised linear says by `can_stack(parts)` and `stack(parts)` how its rows go together.
    """
    first = parts[0]
    if all(type(part) is nn.Linear for part in parts):
        whole = nn.Linear(first.in_features, sum(part.out_features for part in parts), bias=False, device="meta")
        whole.weight = nn.Parameter(torch.cat([part.weight for part in parts]), requires_grad=False)
        return whole
    if all(type(part) is type(first) for part in parts) and first.can_stack(parts):
        return first.stack(parts)
    return SideBySide(parts)
