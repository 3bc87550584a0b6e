"""Root-mean-square normalisation."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import nn

from model.layers.kernels import exchanged

NormKernel = Callable[..., torch.Tensor]  # (x, widths, weight, eps) -> x normalised


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
    return exchanged(module, RMSNorm, "kernel", kernel)
