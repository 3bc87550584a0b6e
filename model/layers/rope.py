"""Rotary position embedding. Mistral's checkpoints rotate pairs of neighbours (2j, 2j+1), Qwen's the pairs
(j, j + head_dim/2) of the two halves.
"""

from typing import NamedTuple

import torch
from torch import nn

from voxport.bundle.spec import ROTARY_SPAN as SPAN


def _angles(head_dim: int, theta: float, length: int) -> torch.Tensor:
    """float64 [length, head_dim/2]"""
    exponent = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    return torch.arange(length, dtype=torch.float64)[:, None] * theta**-exponent


class RotaryTable(nn.Module):
    """Cosine and sine of `pos · theta^(-2j/head_dim)` for every position of a cache.

    Each is [length, head_dim/2].

    A table instead of arithmetic in the graph: in half precision `pos · frequency` is wrong by whole turns.
    `interleaved`: pairs are of neighbours; otherwise of the two halves.
    """

    def __init__(self, head_dim: int, theta: float, length: int, interleaved: bool = True):
        super().__init__()
        self.interleaved = interleaved
        angle = _angles(head_dim, theta, length)
        self.cos = nn.Buffer(angle.cos().float(), persistent=False)
        self.sin = nn.Buffer(angle.sin().float(), persistent=False)

    def forward(self, positions: torch.Tensor) -> "Rotation":
        """positions int64 [B, S] -> the angles of these rows."""
        return Rotation(self.cos[positions], self.sin[positions], self, self.interleaved)


class UnboundedRotaryTable(nn.Module):
    """The same for sliding-window caches, whose positions have no end.

    An angle is the sum of two, for `pos % SPAN` and for the rest, each from a table of `SPAN` rows.
    Positions are below `bundle.spec.MAX_ROW_POSITION`.
    """

    def __init__(self, head_dim: int, theta: float, interleaved: bool = True):
        super().__init__()
        self.interleaved = interleaved
        near = _angles(head_dim, theta, SPAN)
        self.cos = nn.Buffer(near.cos().float(), persistent=False)
        self.sin = nn.Buffer(near.sin().float(), persistent=False)
        self.far_cos = nn.Buffer((near * SPAN).cos().float(), persistent=False)
        self.far_sin = nn.Buffer((near * SPAN).sin().float(), persistent=False)

    def forward(self, positions: torch.Tensor) -> "Rotation":
        """positions int64 [B, S] -> the angles of these rows."""
        near = positions % SPAN
        # pos // SPAN, because SPAN = 1 modulo SPAN - 1. Core ML divides integers as floats.
        far = (positions - near) % (SPAN - 1)
        cos, sin, far_cos, far_sin = self.cos[near], self.sin[near], self.far_cos[far], self.far_sin[far]
        cos, sin = cos * far_cos - sin * far_sin, sin * far_cos + cos * far_sin
        return Rotation(cos, sin, None, self.interleaved)


class Rotation(NamedTuple):
    """Angles of the rows of a call: cosines and sines [B, S, head_dim/2].

    `table` is the table they were read from, for a kernel that reads it itself; None for
    `UnboundedRotaryTable`.
    """

    cos: torch.Tensor
    sin: torch.Tensor
    table: RotaryTable | None
    interleaved: bool = True

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Rotates the pairs of `x` [B, S, H, head_dim], in single precision."""
        if x.dtype != torch.float32:  # a conversion without effect is two operators in an exported graph
            return self(x.float()).to(x.dtype)
        cos, sin = self.cos[:, :, None], self.sin[:, :, None]
        if not self.interleaved:
            first, second = x.chunk(2, dim=-1)  # [B, S, H, head_dim/2]
            return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)

    def both(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotates queries and keys in one pass, for targets where the number of operators costs time."""
        q, k = self(torch.cat((q, k), dim=2)).split([q.shape[2], k.shape[2]], dim=2)
        return q, k
