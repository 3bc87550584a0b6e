"""Outliers of trained transformers for random weights, without a change of what the model computes.

A few channels behind the norms of trained models are 10 to 100 times as large as others (LLM.int8, Dettmers
et al. 2022). Inputs of down projections have values in the thousands at some channels (Massive Activations,
Sun et al. 2024; SmoothQuant, Xiao et al. 2023). Norms of columns have heavy tails. Powers of two plant each
of them: they move between a weight and the weights behind it (`model.layers.channels`).

Channels of trained models are correlated, which error compensation (GPTQ, Frantar et al. 2022) lives on. Here
the values of each head get a common part: v' = A v with A = I + c u w^T, u orthogonal to w, and the linear
behind them is multiplied by the inverse, I - c u w^T. Its rounding to bfloat16 remains.

Massive values of the residual at the first tokens are not planted. Every norm divides by all channels, so no
other weights compute the same with them.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from voxport.model.layers.channels import Channels, ChannelScales, channels_of
from voxport.model.synthetic.checkpoint import generator

COUNT = 4  # outlier channels of a pair
SPREAD = 0.7  # standard deviation of the exponents of all channels, before they are rounded
COMMON = 2.0  # the common part of a value over its own: a correlation of 0.8 between channels
NORM, VALUES, UP = 4, 3, 8  # exponents of the outlier channels: 16, 8 and 256 times


class Outliers:
    """Weights with outliers. The same for the same holder and seed."""

    def __init__(self, root: nn.Module, seed: int):
        pairs = list(channels_of(root))
        self.scales = ChannelScales(root, {pair.writer: _exponents(root, pair, seed) for pair in pairs})
        self.heads: dict[str, Direction] = {}  # by tensor
        self.readers: dict[str, Direction] = {}
        for pair in pairs:
            if pair.heads:
                direction = _direction(pair.width // pair.heads, generator(seed, f"common/{pair.writer}"))
                for name, _ in root.get_submodule(pair.writer).named_parameters(recurse=False):
                    self.heads[f"{pair.writer}.{name}"] = direction
                self.readers |= {f"{reader}.weight": direction for reader in pair.readers}

    def __call__(self, name: str, tensor: torch.Tensor, first: int = 0) -> torch.Tensor:
        """The tensor, or its rows from `first` on; of the same dtype. No head is divided."""
        mixed = tensor.float()
        if found := self.heads.get(name):
            heads = mixed.reshape(-1, len(found.u), *mixed.shape[1:])
            shared = torch.einsum("d,hd...->h...", found.w, heads)
            mixed = (heads + torch.einsum("d,h...->hd...", found.u, shared)).reshape(mixed.shape)
        if found := self.readers.get(name):
            heads = mixed.reshape(len(mixed), -1, len(found.u))
            mixed = (heads - (heads @ found.u)[..., None] * found.w).reshape(mixed.shape)
        return self.scales(name, mixed.to(tensor.dtype), first)


class Direction(NamedTuple):
    """A = I + u w^T of the values of a head; u [D] has about the length of sqrt(D), w [D] of 1."""

    u: torch.Tensor
    w: torch.Tensor


def _direction(size: int, rng: np.random.Generator) -> Direction:
    w = rng.standard_normal(size)
    w /= np.linalg.norm(w)
    u = rng.choice([-COMMON, COMMON], size)
    u -= (u @ w) * w
    return Direction(torch.from_numpy(u).float(), torch.from_numpy(w).float())


def _exponents(root: nn.Module, pair: Channels, seed: int) -> torch.Tensor:
    rng = generator(seed, f"outliers/{pair.writer}")
    exponents = np.rint(rng.standard_normal(pair.width) * SPREAD).astype(np.int64)
    if isinstance(root.get_submodule(pair.writer), nn.Linear):
        largest = VALUES if pair.heads else UP
    else:
        largest = NORM
    exponents[rng.choice(pair.width, min(COUNT, pair.width), replace=False)] = largest
    return torch.from_numpy(exponents)
