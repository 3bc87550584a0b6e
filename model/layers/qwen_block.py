"""Transformer blocks under Qwen's tensor names, with norms of queries and keys per head, and their stack."""

import torch
from torch import nn

from voxport.model.config import QwenBlockConfig
from voxport.model.layers.attention import Attended, Attention, HeadWeights, Place
from voxport.model.layers.basic import FeedForward, Layer, RMSNorm
from voxport.model.layers.block import parts_of, run_blocks
from voxport.model.layers.channels import QWEN_PAIRS
from voxport.model.layers.rope import RotaryTable, Rotation


class AttentionWeights(HeadWeights):
    """Parameters of `self_attn`. `has_norms`: queries and keys are normed per head."""

    def __init__(self, config: QwenBlockConfig, has_norms: bool = True):
        super().__init__()
        self.n_heads, self.n_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        width, kv_width = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, kv_width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)
        if has_norms:
            self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps)


class MLPWeights(nn.Module):
    """Parameters of `mlp`."""

    def __init__(self, config: QwenBlockConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)


class QwenBlockWeights(nn.Module):
    """Parameters of a block."""

    channel_pairs = QWEN_PAIRS

    def __init__(self, config: QwenBlockConfig):
        super().__init__()
        self.self_attn = AttentionWeights(config)
        self.mlp = MLPWeights(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class StackWeights(nn.Module):
    """Blocks and the norm behind them."""

    def __init__(self, config: QwenBlockConfig):
        super().__init__()
        self.layers = nn.ModuleList(QwenBlockWeights(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)


class GatedMLP(FeedForward):
    names = ("gate_proj", "down_proj", "up_proj")


class NormedAttention(Attention):
    """Self-attention whose queries and keys are normed per head before they are rotated."""

    names = ("q_proj", "k_proj", "v_proj", "o_proj")

    def __init__(self, weights: AttentionWeights):
        super().__init__(weights)
        self.q_norm, self.k_norm = weights.q_norm, weights.k_norm

    def project(
        self, x: torch.Tensor, queries: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v = super().project(x, queries)
        return self.q_norm(q), self.k_norm(k), v

    def attend_and_append(
        self, x: torch.Tensor, rotation: Rotation, rows: tuple[torch.Tensor, ...]
    ) -> Attended:
        """x [B, S, width] behind `rows`, which are none, or keys and values [B, R, H_kv, D]
        -> attended [B, S, width], keys and values with the new rows.

        For a sequence of few rows that begins and ends in one call: it needs neither a cache nor a mask.
        """
        q, k, v = self.project(x)
        q, k = self.kernel.rotated(q, k, rotation)
        if rows:
            k, v = torch.cat((rows[0], k), dim=1), torch.cat((rows[1], v), dim=1)
        before = k.shape[1] - q.shape[1]
        attended = [
            self.kernel.uncached(q[:, row : row + 1], k[:, : before + row + 1], v[:, : before + row + 1])
            for row in range(q.shape[1] - 1)
        ]
        # without a slice of all rows, which one converter does not support
        attended.append(self.kernel.uncached(q[:, -1:] if attended else q, k, v))
        return self.wo(torch.cat(attended, dim=1).flatten(-2)), k, v


class QwenBlock(nn.Module):
    """x + attention(norm x), then x + mlp(norm x), with rotary positions and a cache."""

    def __init__(self, weights: QwenBlockWeights):
        super().__init__()
        self.attention = NormedAttention(weights.self_attn)
        self.mlp = GatedMLP(weights.mlp)
        self.attention_norm, self.mlp_norm = weights.input_layernorm, weights.post_attention_layernorm

    def forward(
        self, x: torch.Tensor, rotation: Rotation, k_cache: torch.Tensor, v_cache: torch.Tensor, where: Place
    ) -> Attended:
        """x [B, S, width], two caches, position int64 [B] of the first row -> x, both caches."""
        attended, k_cache, v_cache = self.attention(self.attention_norm(x), rotation, k_cache, v_cache, where)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), k_cache, v_cache

    def attend_and_append(
        self, x: torch.Tensor, rotation: Rotation, rows: tuple[torch.Tensor, ...]
    ) -> Attended:
        """As `NormedAttention.attend_and_append` -> x, keys, values."""
        attended, keys, values = self.attention.attend_and_append(self.attention_norm(x), rotation, rows)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), keys, values


class QwenStack(nn.Module):
    """The graph of `prefill` and `decode_step`: a stack with its caches, its last norm and a head.

    embeddings [B, S, width], position int64 [B] of each first row, then k and v cache of every layer
    -> hidden [B, S, width] (final-normed), logits [B, ids] of the last row, or with `all_rows`
    [B, S, ids], then the caches.
    """

    def __init__(
        self,
        weights: StackWeights,
        head: nn.Module,
        config: QwenBlockConfig,
        cache_length: int,
        all_rows: bool = False,
    ):
        super().__init__()
        self.all_rows = all_rows
        self.layers = nn.ModuleList(QwenBlock(part) for part in parts_of(weights.layers, QwenBlockWeights))
        self.norm = weights.norm
        self.rotary = RotaryTable(config.head_dim, config.rope_theta, cache_length, interleaved=False)
        self.head: Layer = head

    def forward(
        self, embeddings: torch.Tensor, position: torch.Tensor, *caches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        rotation = self.rotary(position[:, None] + torch.arange(embeddings.shape[1]))
        x, written = run_blocks(self.layers, embeddings, rotation, caches, position)
        hidden = self.norm(x)
        return hidden, self.head(hidden if self.all_rows else hidden[:, -1]), *written
