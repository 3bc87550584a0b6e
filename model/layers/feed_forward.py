"""SwiGLU feed-forward block."""

import torch
import torch.nn.functional as F
from torch import nn

from model.layers.linear import fuse


class FeedForwardWeights(nn.Module):
    """Parameters of a feed-forward block under their published names. `bias` is that of w2."""

    def __init__(self, dim: int, hidden_dim: int, bias: bool = False):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=bias)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)


class FeedForward(nn.Module):
    """w2(silu(w1 x) · w3 x), `[..., dim] -> [..., dim]`, with w1 and w3 fused."""

    def __init__(self, weights: FeedForwardWeights):
        super().__init__()
        self.w2: nn.Module = weights.w2
        self.w13 = fuse(weights, "w1", "w3")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.w13(x).chunk(2, dim=-1)
        y: torch.Tensor = self.w2(F.silu(gate) * up)
        return y
