"""SwiGLU feed-forward block."""

import torch
import torch.nn.functional as F
from torch import nn

from model.layers.linear import joined


class FeedForward(nn.Module):
    """w2(silu(w1 x) · w3 x), `[..., dim] -> [..., dim]`. `bias` is of w2."""

    def __init__(self, dim: int, hidden_dim: int, bias: bool = False):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=bias)
        self.w3 = nn.Linear(dim, hidden_dim, bias=False)

    def join(self) -> None:
        """Once the weights are in place: gate and up become one product."""
        self.w13 = joined([self.w1, self.w3])
        del self.w1, self.w3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.w13(x).chunk(2, dim=-1)
        return self.w2(F.silu(gate) * up)
