"""Rotary position embedding over interleaved pairs (2j, 2j+1), as Mistral's checkpoints store them."""

import torch
from torch import nn


class RotaryTable(nn.Module):
    """Cosine and sine of `pos · theta^(-2j/head_dim)` for every position of a cache, `[length, head_dim/2]` each.

    A table rather than in-graph arithmetic: in half precision `pos · frequency` would lose whole turns.
    """

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, head_dim: int, theta: float, length: int):
        super().__init__()
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
        angle = torch.arange(length, dtype=torch.float64)[:, None] * theta**-exponent
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """`positions` int64 [S] -> cos, sin [S, head_dim/2]."""
        return self.cos[positions], self.sin[positions]


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotates the pairs of `x` [B, S, H, head_dim] by the angles in `cos`, `sin` [S, head_dim/2]."""
    even, odd = x.float().reshape(*x.shape[:-1], x.shape[-1] // 2, 2).unbind(-1)  # [B, S, H, head_dim/2]
    cos, sin = cos[:, None, :], sin[:, None, :]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2).to(x.dtype)
