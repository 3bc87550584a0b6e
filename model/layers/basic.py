"""Layers without positions and caches: RMSNorm, fused linears, feed-forward, token embedding; and what holds
weights under published names.

Linears over one input are fused into one: fewer calls, and activations are read and quantised once.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Layer = Callable[[torch.Tensor], torch.Tensor]  # a module of one input and one output
USAGE_FLOOR = 1e-5  # as in the published code; only entries that were never used are below it
NormKernel = Callable[..., torch.Tensor]  # (x, widths, weight, eps) -> x normalised


@contextmanager
def exchanged_kernel(module: nn.Module, kind: type[nn.Module], kernel: object) -> Iterator[None]:
    """Sets the kernel of every `kind` below `module`, and restores the previous kernels on exit.

    `kernel` is of any type, because each `kind` has its own kernels.
    """
    parts: list[Any] = [part for part in module.modules() if isinstance(part, kind)]  # they have a `kernel`
    previous = [part.kernel for part in parts]
    try:
        for part in parts:
            part.kernel = kernel
        yield
    finally:
        for part, before in zip(parts, previous, strict=True):
            part.kernel = before


class RMSNorm(nn.Module):
    """x · rsqrt(mean(x²) + eps) · weight over the last dimension, `[..., width] -> [..., width]`."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.width = width
        self.eps = eps
        self.kernel: NormKernel = F.rms_norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x, (self.width,), self.weight, self.eps)


def norm_kernel(module: nn.Module, kernel: NormKernel) -> AbstractContextManager[None]:
    """Sets the kernel of every `RMSNorm` below `module`, and restores the previous kernels on exit."""
    return exchanged_kernel(module, RMSNorm, kernel)


class ConcatenatedLinears(nn.Module):
    """Linears that cannot share a weight, because their schemes differ: `[..., in] -> [..., sum of out]`."""

    def __init__(self, parts: list[nn.Module]):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], dim=-1)


def fuse(weights: nn.Module, *names: str) -> nn.Module:
    """Fuses the linears `names` of `weights` into one: `[..., in] -> [..., sum of out]`.

    Quantised linears are fused by their `can_fuse(parts)` and `fuse(parts)`. The linears are removed from
    `weights`, so that only one weight is in memory twice at a time.
    """
    parts: list[Any] = [weights.get_submodule(name) for name in names]  # they have several classes
    whole: Any = ConcatenatedLinears(parts)
    if all(type(part) is nn.Linear for part in parts):
        out_features = sum(part.out_features for part in parts)
        whole = nn.Linear(parts[0].in_features, out_features, bias=False, device="meta")
        whole.weight = nn.Parameter(torch.cat([part.weight for part in parts]), requires_grad=False)
        whole.bias = _fused_bias(parts)
    elif all(type(part) is type(parts[0]) for part in parts) and parts[0].can_fuse(parts):
        whole = parts[0].fuse(parts)
        whole.bias = _fused_bias(parts)
    for name in names:
        delattr(weights, name)
    fused: nn.Module = whole
    return fused


def _fused_bias(parts: list[Any]) -> nn.Parameter | None:
    """Concatenated biases, with zeros for a linear without one; None if no linear has a bias."""
    if all(part.bias is None for part in parts):
        return None
    biases = [torch.zeros(part.weight.shape[0]) if part.bias is None else part.bias for part in parts]
    return nn.Parameter(torch.cat(biases), requires_grad=False)


class FeedForwardWeights(nn.Module):
    """Parameters of a feed-forward block under their published names. `bias`: w2 has one."""

    def __init__(self, dim: int, hidden_dim: int, bias: bool = False):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=bias)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)


class FeedForward(nn.Module):
    """w2(silu(w1 x) · w3 x), `[..., dim] -> [..., dim]`, with w1 and w3 fused.

    `names` names the three linears in `weights`.
    """

    names = ("w1", "w2", "w3")

    def __init__(self, weights: nn.Module):
        super().__init__()
        gate, down, up = self.names
        self.w2: Layer = weights.get_submodule(down)
        self.w13 = fuse(weights, gate, up)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.w13(x).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * up)


class TokenEmbedding(nn.Module):
    """ids int64 [1, S] -> embeddings [1, S, dim]."""

    def __init__(self, table: nn.Module):
        super().__init__()
        self.table: Layer = table

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


def codebook_entries(sums: torch.Tensor, usage: torch.Tensor) -> torch.Tensor:
    """The entries of a code book, which checkpoints store as sums and how often each was used.

    sums [size, width], usage [size] -> [size, width].
    """
    return sums / usage.clamp_min(USAGE_FLOOR)[:, None]


def module_dict(**modules: nn.Module) -> nn.ModuleDict:
    return nn.ModuleDict(modules)


def conv_of(weights: nn.Module) -> nn.Conv1d:
    """The convolution that a holder has as `conv`."""
    conv = weights.get_submodule("conv")
    assert isinstance(conv, nn.Conv1d)
    return conv
