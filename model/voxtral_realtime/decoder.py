"""The decoder of Voxtral-Realtime: sums of audio and token embeddings to logits of the next token, for a delay."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from model.layers.attention import Attention
from model.layers.feed_forward import FeedForward
from model.layers.norm import RMSNorm
from model.layers.rope import RollingRotaryTable
from model.voxtral_realtime.config import VoxtralRealtimeConfig

DELAY_BASE = 10000.0


def embed_delay(tokens: int, dim: int) -> torch.Tensor:
    """Cosines, then sines, of the delay in tokens at dim / 2 frequencies: float32 [dim]."""
    frequency = DELAY_BASE ** -(torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
    return torch.cat(((tokens * frequency).cos(), (tokens * frequency).sin())).float()


class DelayNorm(nn.Module):
    """A norm whose weight is one of several, a row for each delay."""

    def __init__(self, norm: RMSNorm, scales: torch.Tensor):
        """scales [delays, width]: what 1 is added to before it multiplies the norm's weight."""
        super().__init__()
        self.norm = norm
        self.register_buffer("weights", norm.weight * (1 + scales), persistent=False)

    def forward(self, x: torch.Tensor, delay: torch.Tensor) -> torch.Tensor:
        """`delay` int64 [1] is a row."""
        norm = self.norm
        return norm.kernel(x, (norm.width,), self.weights[delay].flatten(), norm.eps)


class DecoderBlock(nn.Module):
    """Pre-norm: x + attention(norm x), then x + feed_forward(norm x), the second norm scaled by what is learned of the delay."""

    def __init__(self, config: VoxtralRealtimeConfig):
        super().__init__()
        self.attention = Attention(config.dim, config.n_heads, config.n_kv_heads, config.head_dim)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.feed_forward = FeedForward(config.dim, config.hidden_dim)
        self.ffn_norm: Any = RMSNorm(config.dim, config.norm_eps)
        inner = config.ada_rms_norm_t_cond_dim
        self.ada_rms_norm_t_cond = nn.Sequential(
            nn.Linear(config.dim, inner, bias=False), nn.GELU(), nn.Linear(inner, config.dim, bias=False)
        )

    def fold(self, delays: tuple[int, ...]) -> None:
        """Once the weights are in place: what depends on the delay alone becomes constants, a row for each of `delays` (tokens)."""
        if self.ffn_norm.weight.is_meta:
            return
        embedded = torch.stack([embed_delay(delay, self.ffn_norm.width) for delay in delays])
        self.ffn_norm = DelayNorm(self.ffn_norm, self.ada_rms_norm_t_cond(embedded))
        del self.ada_rms_norm_t_cond

    def forward(self, x, rotation, k_cache, v_cache, turn, delay):
        attended, k_cache, v_cache = self.attention(self.attention_norm(x), rotation, k_cache, v_cache, turn)
        x = x + attended
        return x + self.feed_forward(self.ffn_norm(x, delay)), k_cache, v_cache


class DecoderGraph(nn.Module):
    """What is lowered as one graph for `prefill` and `decode_step`.

    embeddings [1, S, dim], position int64 [1] of the first, delay int64 [1] (which of the bundle's), k and v cache of every layer
    -> hidden [1, S, dim] (final-normed), logits [1, vocab] of the last row, then the caches.
    """

    def __init__(self, layers: nn.ModuleList, norm: nn.Module, head: nn.Module, rotary: RollingRotaryTable):
        super().__init__()
        self.layers, self.norm, self.head, self.rotary = layers, norm, head, rotary

    def forward(
        self, embeddings: torch.Tensor, position: torch.Tensor, delay: torch.Tensor, *caches: torch.Tensor
    ):
        rotation = self.rotary(position[:, None] + torch.arange(embeddings.shape[1]))
        turn = self.layers[0].attention.turn(position, embeddings.shape[1], caches[0])
        x, written = embeddings, []
        for index, block in enumerate(self.layers):
            x, k_cache, v_cache = block(x, rotation, caches[2 * index], caches[2 * index + 1], turn, delay)
            written += [k_cache, v_cache]
        hidden = self.norm(x)
        return hidden, self.head(hidden[:, -1]), *written


class TokenEmbeddingGraph(nn.Module):
    """ids int64 [1, S] -> embeddings [1, S, dim]."""

    def __init__(self, table: nn.Module):
        super().__init__()
        self.table = table

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


class AudioEmbedding(nn.Module):
    """The published name of table, encoder and adapter: `mm_streams_embeddings.embedding_module`."""

    def __init__(self, config: VoxtralRealtimeConfig, encoder: nn.Module):
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.whisper_encoder = encoder
        stacked = config.encoder.dim * config.downsample
        self.audio_language_projection = nn.Sequential(
            nn.Linear(stacked, config.dim, bias=False),
            nn.GELU(),
            nn.Linear(config.dim, config.dim, bias=False),
        )
