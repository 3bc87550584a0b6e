"""Forward passes for training over the holders of published tensors: batches, gradients, no caches.

The computing modules of the families serve one stream, write caches in place and fuse weights. These
functions compute the same values from the holders, whose parameters have the names of a checkpoint.
"""

import torch
import torch.nn.functional as F
from torch import nn

from voxport.bundle.spec import MASKED_SCORE
from voxport.model.layers.attention import AttentionWeights
from voxport.model.layers.basic import FeedForwardWeights, RMSNorm
from voxport.model.layers.block import BlockWeights
from voxport.model.layers.rope import Rotation

SMALLEST_BLOCK = 16  # queries of a block
TABLE_STD = 0.05  # for embedding tables


def initialise(model: nn.Module, seed: int, depth: int) -> None:
    """Fills the empty parameters of a holder.

    Linears keep the variance of their input. The last linears of both branches of a block are smaller, by
    `depth` blocks, so that a deep stack begins near the identity.
    """
    generator = torch.Generator().manual_seed(seed)
    norms = {id(module.weight) for module in model.modules() if isinstance(module, RMSNorm)}
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for name, parameter in model.named_parameters():
        if id(parameter) in norms:
            parameter.data.fill_(1.0)
        elif name.endswith("bias"):
            parameter.data.zero_()
        else:
            spread = TABLE_STD if id(parameter) in tables else parameter[0].numel() ** -0.5
            if name.endswith(("wo.weight", "w2.weight")):
                spread *= (2 * depth) ** -0.5
            drawn = torch.randn(parameter.shape, generator=generator) * spread
            parameter.data.copy_(drawn)


def project(weights: AttentionWeights, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [B, S, dim] -> q [B, S, H, D], k and v [B, S, H_kv, D]."""
    q, k, v = (
        linear(x).unflatten(-1, (-1, weights.head_dim)) for linear in (weights.wq, weights.wk, weights.wv)
    )
    return q, k, v


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """q [B, S, H, D], k and v [B, L, H_kv, D], bias [..., S, L] of the scores -> [B, S, H, D].

    Written out: for windows this short, torch's fused kernel takes three times as long on a processor.
    """
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    attended: torch.Tensor = scores.softmax(dim=-1) @ v
    return attended.transpose(1, 2)


def attend_window(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, slopes: torch.Tensor | None = None
) -> torch.Tensor:
    """Causal attention where a query sees `window` keys, its own included: `[B, S, H, D]` in and out.

    In blocks of queries, each with the keys of its own block and of the block before. `slopes` [H] of ALiBi.
    """
    length, block = q.shape[1], max(window, SMALLEST_BLOCK)
    blocks = -(-length // block)
    q, k, v = (F.pad(part, (0, 0, 0, 0, 0, blocks * block - length)) for part in (q, k, v))
    q, k, v = (part.unflatten(1, (blocks, block)) for part in (q, k, v))
    if blocks > 1:
        k, v = (torch.cat((F.pad(part, (0, 0, 0, 0, 0, 0, 1, 0))[:, :-1], part), dim=2) for part in (k, v))
    bias = _window_bias(block, min(blocks, 2), window, slopes, q.device)
    bias = bias.expand(blocks, *bias.shape[1:]).clone()
    if blocks > 1:
        bias[0, :, :, :block] = MASKED_SCORE  # before the first key
    out = attend(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), bias.repeat(q.shape[0], 1, 1, 1))
    joined: torch.Tensor = out.unflatten(0, (-1, blocks)).flatten(1, 2)
    return joined[:, :length]


def _window_bias(
    block: int, of_keys: int, window: int, slopes: torch.Tensor | None, where: torch.device
) -> torch.Tensor:
    """Bias of `block` queries over the keys of `of_keys` blocks, the last one their own: [1, H or 1, S,
    L].
    """
    key = torch.arange(of_keys * block, device=where)
    distance = torch.arange(block, device=where)[:, None] + (of_keys - 1) * block - key
    visible = (distance >= 0) & (distance < window)
    linear = torch.zeros(1, 1, 1) if slopes is None else -slopes[:, None, None]
    return torch.where(visible, linear.to(where) * distance, MASKED_SCORE)[None]


def feed_forward(weights: FeedForwardWeights, x: torch.Tensor) -> torch.Tensor:
    """x [..., dim] -> [..., dim]"""
    y: torch.Tensor = weights.w2(F.silu(weights.w1(x)) * weights.w3(x))
    return y


def causal_block(
    weights: BlockWeights, x: torch.Tensor, rotation: Rotation, window: int, scale: torch.Tensor | None = None
) -> torch.Tensor:
    """x [B, S, dim] -> [B, S, dim]. `scale` [B, 1, dim] multiplies the second norm."""
    q, k, v = project(weights.attention, weights.attention_norm(x))
    attended = attend_window(rotation(q), rotation(k), v, window)
    x = x + weights.attention.wo(attended.flatten(-2))
    normed = weights.ffn_norm(x)
    return x + feed_forward(weights.feed_forward, normed if scale is None else normed * scale)


def head_scores(weights: BlockWeights, x: torch.Tensor, rotation: Rotation, head: int) -> torch.Tensor:
    """The causal scores of a block's head for x [B, S, dim]: [B, S, S] in float32."""
    attention = weights.attention
    width = attention.head_dim
    normed = weights.attention_norm(x)
    of_keys = head * len(attention.wk.weight) // len(attention.wq.weight)  # several heads share keys
    q, k = (
        F.linear(normed, linear.weight[part * width :][:width])[:, :, None]
        for linear, part in ((attention.wq, head), (attention.wk, of_keys))
    )
    scores: torch.Tensor = (rotation(q)[:, :, 0] @ rotation(k)[:, :, 0].mT).float() * width**-0.5
    length = x.shape[1]
    later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
    return scores.masked_fill(later, MASKED_SCORE)
