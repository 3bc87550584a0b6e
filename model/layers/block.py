"""Pre-norm transformer block."""

from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import nn

from voxport.model.config import TransformerArgs
from voxport.model.layers.attention import Attention, AttentionWeights, Place
from voxport.model.layers.basic import FeedForward, FeedForwardWeights, RMSNorm
from voxport.model.layers.channels import MISTRAL_PAIRS
from voxport.model.layers.rope import Rotation

Part = TypeVar("Part", bound=nn.Module)


class BlockWeights(nn.Module):
    """Parameters of a block under their published names.

    `biases` are those that Whisper has: wq, wv, wo and w2.
    """

    channel_pairs = MISTRAL_PAIRS

    def __init__(self, args: TransformerArgs, biases: bool = False):
        super().__init__()
        self.attention = AttentionWeights(args, biases)
        self.attention_norm = RMSNorm(args.dim, args.norm_eps)
        self.feed_forward = FeedForwardWeights(args.dim, args.hidden_dim, biases)
        self.ffn_norm = RMSNorm(args.dim, args.norm_eps)


class PreNorm(nn.Module):
    """The modules of x + attention(norm x), then x + feed_forward(norm x). Subclasses have the `forward`.

    `window`, `separate_queries`: see `Attention`.
    """

    def __init__(self, weights: BlockWeights, window: int | None = None, separate_queries: bool = False):
        super().__init__()
        self.attention = Attention(weights.attention, window, separate_queries)
        self.attention_norm = weights.attention_norm
        self.feed_forward = FeedForward(weights.feed_forward)
        self.ffn_norm: nn.Module = weights.ffn_norm


class Block(PreNorm):
    """A block with rotary positions and a cache."""

    def forward(
        self, x: torch.Tensor, rotation: Rotation, k_cache: torch.Tensor, v_cache: torch.Tensor, where: Place
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [B, S, dim], two caches and `where` of `Attention.forward` -> x [B, S, dim], both caches."""
        attended, k_cache, v_cache = self.attention(self.attention_norm(x), rotation, k_cache, v_cache, where)
        x = x + attended
        return x + self.feed_forward(self.ffn_norm(x)), k_cache, v_cache


def parts_of(modules: Iterable[nn.Module], kind: type[Part]) -> list[Part]:
    """The modules of one class, in order: a `ModuleList` has no type of its elements."""
    return [module for module in modules if isinstance(module, kind)]


def run_blocks(
    layers: nn.ModuleList,
    x: torch.Tensor,
    rotation: Rotation,
    caches: tuple[torch.Tensor, ...],
    *where: Place,
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """x [B, S, dim] through all blocks -> x, and k and v cache of each, in the order of `caches`.

    `where`: the other arguments of a block.
    """
    written: list[torch.Tensor] = []
    for index, block in enumerate(layers):
        x, k_cache, v_cache = block(x, rotation, caches[2 * index], caches[2 * index + 1], *where)
        written += [k_cache, v_cache]
    return x, written
