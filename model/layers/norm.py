"""Root-mean-square normalisation."""

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    """x · rsqrt(mean(x²) + eps) · weight over the last dimension, `[..., width] -> [..., width]`."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.width = width
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (self.width,), self.weight, self.eps)
