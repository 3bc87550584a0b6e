"""Token embedding table."""

import torch
from torch import nn


class TokenEmbedding(nn.Module):
    """ids int64 [1, S] -> embeddings [1, S, dim]."""

    def __init__(self, table: nn.Module):
        super().__init__()
        self.table = table

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = self.table(ids)
        return embeddings
