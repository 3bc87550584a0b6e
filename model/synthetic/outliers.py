"""Outliers of trained transformers for random weights, without a change of what the model computes.

A few channels behind the norms of trained models are 10 to 100 times as large as others (LLM.int8, Dettmers
et al. 2022). Inputs of down projections have values in the thousands at some channels (Massive Activations,
Sun et al. 2024; SmoothQuant, Xiao et al. 2023). Norms of columns have heavy tails. Powers of two plant each
of them: they move between a weight and the weights behind it (`model.layers.channels`).
"""

import numpy as np
import torch
from torch import nn

from voxport.model.layers.channels import Channels, ChannelScales, channels_of
from voxport.model.synthetic.checkpoint import generator

COUNT = 4  # outlier channels of a pair
SPREAD = 0.7  # standard deviation of the exponents of all channels, before they are rounded
NORM, VALUES, UP = 4, 3, 8  # exponents of the outlier channels: 16, 8 and 256 times


def planted(root: nn.Module, seed: int) -> ChannelScales:
    """The same for the same holder and seed."""
    return ChannelScales(root, {pair.writer: _exponents(root, pair, seed) for pair in channels_of(root)})


def _exponents(root: nn.Module, pair: Channels, seed: int) -> torch.Tensor:
    rng = generator(seed, f"outliers/{pair.writer}")
    exponents = np.rint(rng.standard_normal(pair.width) * SPREAD).astype(np.int64)
    if isinstance(root.get_submodule(pair.writer), nn.Linear):
        largest = VALUES if pair.heads else UP
    else:
        largest = NORM
    exponents[rng.choice(pair.width, min(COUNT, pair.width), replace=False)] = largest
    return torch.from_numpy(exponents)
