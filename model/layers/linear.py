"""Products over the same input, joined into one: fewer calls, and activations are read and quantised once."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class SideBySide(nn.Module):
    """Products that cannot share a weight, because they are held in different schemes: `[..., in] -> [..., sum of out]`."""

    def __init__(self, parts: list[nn.Module]):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


def joined(parts: list[Any]) -> nn.Module:
    """One module that gives the outputs of all parts, concatenated: their rows stacked where they are of one kind.

    A quantised linear says by `can_fuse(parts)` and `fuse(parts)` how its rows go together.
    """
    first: Any = parts[0]
    whole: Any
    if all(type(part) is nn.Linear for part in parts):
        whole = nn.Linear(
            first.in_features, sum(part.out_features for part in parts), bias=False, device="meta"
        )
        whole.weight = nn.Parameter(torch.cat([part.weight for part in parts]), requires_grad=False)
    elif all(type(part) is type(first) for part in parts) and first.can_fuse(parts):
        whole = first.fuse(parts)
    else:
        return SideBySide(parts)
    whole.bias = _joined_bias(parts)
    return whole


def _joined_bias(parts: list[Any]) -> nn.Parameter | None:
    """Zeros for who has none; None where nobody has one."""
    if all(part.bias is None for part in parts):
        return None
    biases = [torch.zeros(part.weight.shape[0]) if part.bias is None else part.bias for part in parts]
    return nn.Parameter(torch.cat(biases), requires_grad=False)
