"""The decoder of Voxtral-Realtime: sums of audio and token embeddings to logits of the next token."""

from typing import Any

import torch
from torch import nn

from model.layers.attention import Attention, cache_update
from model.layers.block import parts_of
from model.layers.feed_forward import FeedForward
from model.layers.norm import RMSNorm
from model.layers.rope import Rotation, UnboundedRotaryTable
from model.voxtral_realtime.config import Options, VoxtralRealtimeConfig
from model.voxtral_realtime.weights import DecoderBlockWeights, VoxtralRealtimeWeights

DELAY_BASE = 10000.0


def embed_delay(tokens: int, dim: int) -> torch.Tensor:
    """Cosines, then sines, of the delay in tokens at dim / 2 frequencies: float32 [dim]."""
    frequency = DELAY_BASE ** -(torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
    return torch.cat(((tokens * frequency).cos(), (tokens * frequency).sin())).float()


class DelayNorm(nn.Module):
    """RMSNorm with one weight row per delay."""

    weights: torch.Tensor

    def __init__(self, norm: RMSNorm, scales: torch.Tensor):
        """scales [delays, width]: 1 + scale multiplies the weight of `norm`."""
        super().__init__()
        self.norm = norm
        self.register_buffer("weights", norm.weight * (1 + scales), persistent=False)

    def forward(self, x: torch.Tensor, delay: torch.Tensor) -> torch.Tensor:
        """x [..., width], delay int64 [1] (a row) -> [..., width]."""
        norm = self.norm
        return norm.kernel(x, (norm.width,), self.weights[delay].flatten(), norm.eps)


class DecoderBlock(nn.Module):
    """x + attention(norm x), then x + feed_forward(norm x). The second norm depends on the delay."""

    def __init__(self, weights: DecoderBlockWeights, window: int, delays: torch.Tensor):
        """delays [n, dim]: the embedding of each delay."""
        super().__init__()
        self.attention = Attention(weights.attention, window)
        self.attention_norm = weights.attention_norm
        self.feed_forward = FeedForward(weights.feed_forward)
        self.ffn_norm = DelayNorm(weights.ffn_norm, weights.ada_rms_norm_t_cond(delays))

    def forward(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        update: Any,
        delay: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [1, S, dim], two caches, `update` of `cache_update` -> x [1, S, dim] and both caches."""
        attended, k_cache, v_cache = self.attention(
            self.attention_norm(x), rotation, k_cache, v_cache, update
        )
        x = x + attended
        return x + self.feed_forward(self.ffn_norm(x, delay)), k_cache, v_cache


class Decoder(nn.Module):
    """The graph of `prefill` and `decode_step`.

    embeddings [1, S, dim], position int64 [1] of the first, delay int64 [1] (an index into the bundle's
    delays), then k and v cache of every layer
    -> hidden [1, S, dim] (final-normed), logits [1, vocab] of the last row, then the caches.
    """

    def __init__(
        self,
        weights: VoxtralRealtimeWeights,
        config: VoxtralRealtimeConfig,
        options: Options,
        cache_length: int,
    ):
        super().__init__()
        window = min(config.sliding_window, cache_length)
        delays = torch.stack([embed_delay(delay, config.dim) for delay in options.delays(config)])
        parts = parts_of(weights.layers, DecoderBlockWeights)
        self.layers = nn.ModuleList(DecoderBlock(part, window, delays) for part in parts)
        self.norm, self.head = weights.norm, weights.output
        self.rotary = UnboundedRotaryTable(config.head_dim, config.rope_theta)

    def forward(
        self, embeddings: torch.Tensor, position: torch.Tensor, delay: torch.Tensor, *caches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        rows = embeddings.shape[1]
        rotation = self.rotary(position[:, None] + torch.arange(rows))
        update = cache_update(self.layers, position, rows, caches[0])
        x, written = embeddings, []
        for index, block in enumerate(self.layers):
            x, k_cache, v_cache = block(x, rotation, caches[2 * index], caches[2 * index + 1], update, delay)
            written += [k_cache, v_cache]
        hidden = self.norm(x)
        return hidden, self.head(hidden[:, -1]), *written
