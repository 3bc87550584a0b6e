"""Linears over one input, fused into one: fewer calls, and activations are read and quantised once."""

from typing import Any

import torch
from torch import nn


class ConcatenatedLinears(nn.Module):
    """Linears that cannot share a weight, because their schemes differ: `[..., in] -> [..., sum of out]`."""

    def __init__(self, parts: list[nn.Module]):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


def fuse(weights: nn.Module, *names: str) -> nn.Module:
    """Fuses the linears `names` of `weights` into one: `[..., in] -> [..., sum of out]`.

    The linears are removed from `weights`, so that only one weight is in memory twice at a time.
    """
    parts = [weights.get_submodule(name) for name in names]
    fused = _fused(parts)
    for name in names:
        delattr(weights, name)
    return fused


def _fused(parts: list[Any]) -> nn.Module:
    """Stacks the rows of linears of one kind.

    Quantised linears do it by their `can_fuse(parts)` and `fuse(parts)`.
    """
    first = parts[0]
    whole: Any
    if all(type(part) is nn.Linear for part in parts):
        out_features = sum(part.out_features for part in parts)
        whole = nn.Linear(first.in_features, out_features, bias=False, device="meta")
        whole.weight = nn.Parameter(torch.cat([part.weight for part in parts]), requires_grad=False)
    elif all(type(part) is type(first) for part in parts) and first.can_fuse(parts):
        whole = first.fuse(parts)
    else:
        return ConcatenatedLinears(parts)
    whole.bias = _fused_bias(parts)
    fused: nn.Module = whole
    return fused


def _fused_bias(parts: list[Any]) -> nn.Parameter | None:
    """Concatenated biases, with zeros for a linear without one; None if no linear has a bias."""
    if all(part.bias is None for part in parts):
        return None
    biases = [torch.zeros(part.weight.shape[0]) if part.bias is None else part.bias for part in parts]
    return nn.Parameter(torch.cat(biases), requires_grad=False)
