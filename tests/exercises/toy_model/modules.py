"""Modules of the toy family: the holder of the checkpoint's tensors, and the decoder that computes."""

from __future__ import annotations

import torch
from torch import nn


class ToyWeights(nn.Module):
    """body.weight [dim, dim] and head.weight [dim, dim]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body, self.head = (nn.Linear(dim, dim, bias=False) for _ in range(2))


class Decoder(nn.Module):
    """The graph of `prefill` and `decode_step`.

    x [1, S, dim], position int64 [1] of the first row, cache of L rows with one head -> y [1, S, dim], cache.
    A row of y is `head(mean of body(x))` over all positions up to its own.
    """

    def __init__(self, weights: ToyWeights) -> None:
        super().__init__()
        self.body, self.head = weights.body, weights.head

    def forward(
        self, x: torch.Tensor, position: torch.Tensor, cache: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        rows = cache.reshape(-1, x.shape[2])  # [L, dim]: with one head, the same in every layout
        row = torch.arange(rows.shape[0])  # [L]
        own = position + torch.arange(x.shape[1])  # [S]
        new = (row[:, None] == own).float() @ self.body(x)[0]  # [L, dim]
        is_new = torch.logical_and(row >= position, row < position + x.shape[1])
        rows = torch.where(is_new[:, None], new, rows)
        share = (own[:, None] >= row).float() / (own + 1)[:, None].float()  # [S, L]
        return self.head((share @ rows)[None]), rows.reshape(cache.shape)
