"""The decoder of Voxtral-TTS: prompt and code embeddings to hidden states, and what is read from them once per frame."""

from __future__ import annotations

import torch
from torch import nn

from model.layers.attention import Attention
from model.layers.feed_forward import FeedForward
from model.layers.norm import RMSNorm
from model.layers.rope import RotaryTable
from model.voxtral_tts.config import VoxtralTTSConfig


class Block(nn.Module):
    """Pre-norm: x + attention(norm x), then x + feed_forward(norm x)."""

    def __init__(self, config: VoxtralTTSConfig):
        super().__init__()
        self.attention = Attention(config.dim, config.n_heads, config.n_kv_heads, config.head_dim)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.feed_forward = FeedForward(config.dim, config.hidden_dim)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x, rotation, k_cache, v_cache, position):
        attended, k_cache, v_cache = self.attention(
            self.attention_norm(x), rotation, k_cache, v_cache, position
        )
        x = x + attended
        return x + self.feed_forward(self.ffn_norm(x)), k_cache, v_cache


class Embeddings(nn.Module):
    """The two tables, under the checkpoint's names."""

    def __init__(self, config: VoxtralTTSConfig, code_table_rows: int):
        super().__init__()
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.audio_codebook_embeddings = nn.ModuleDict(
            {"embeddings": nn.Embedding(code_table_rows, config.dim)}
        )


class BackboneGraph(nn.Module):
    """What is lowered as one graph for `prefill` and `decode_step`.

    embeddings [B, S, dim], position int64 [B] of each first row, then k and v cache of every layer
    -> hidden [B, S, dim] (final-normed), semantic_logits [B, rows] and condition [B, dim] of the last row, then the caches.
    `condition` is llm_projection(hidden): the acoustic head needs it once per frame.
    """

    def __init__(
        self,
        layers: nn.ModuleList,
        norm: nn.Module,
        semantic_head: nn.Module,
        llm_projection: nn.Module,
        rotary: RotaryTable,
    ):
        super().__init__()
        self.layers, self.norm, self.rotary = layers, norm, rotary
        self.semantic_head, self.llm_projection = semantic_head, llm_projection

    def forward(self, embeddings: torch.Tensor, position: torch.Tensor, *caches: torch.Tensor):
        rotation = self.rotary(position[:, None] + torch.arange(embeddings.shape[1]))
        x, written = embeddings, []
        for index, block in enumerate(self.layers):
            x, k_cache, v_cache = block(x, rotation, caches[2 * index], caches[2 * index + 1], position)
            written += [k_cache, v_cache]
        hidden = self.norm(x)
        last = hidden[:, -1]  # [B, dim]
        return hidden, self.semantic_head(last), self.llm_projection(last), *written


class TextEmbeddingGraph(nn.Module):
    """ids int64 [1, S] -> embeddings [1, S, dim]."""

    def __init__(self, table: nn.Module):
        super().__init__()
        self.table = table

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


class CodeEmbeddingGraph(nn.Module):
    """codes int64 [B, K] of one frame -> embedding [B, 1, dim]: the plain sum of one table row per code book.

    `addressed` is the number of rows that codes can name. A shorter table (see `config.short_code_table_rows`) reads as
    zero beyond its end.
    """

    offsets: torch.Tensor

    def __init__(self, table: nn.Module, offsets: tuple[int, ...], addressed: int):
        super().__init__()
        self.table = table
        self.rows: int = (
            table.get_parameter("weight").shape[0]
            if isinstance(table, nn.Embedding)
            else table.get_buffer("weight").shape[0]
        )
        self.is_short = self.rows < addressed
        self.register_buffer("offsets", torch.tensor(offsets), persistent=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        ids = codes + self.offsets
        if not self.is_short:
            return self.table(ids).sum(dim=1, keepdim=True)
        embeddings = self.table(ids.clamp(max=self.rows - 1)) * (ids < self.rows).float()[:, :, None]
        return embeddings.sum(dim=1, keepdim=True)
