"""The decoder of Voxtral-TTS: embeddings to hidden states, semantic logits and condition."""

import torch
from torch import nn

from model.layers.block import Block, BlockWeights, parts_of
from model.layers.rope import RotaryTable
from model.voxtral_tts.config import VoxtralTTSConfig
from model.voxtral_tts.weights import VoxtralTTSWeights


class Backbone(nn.Module):
    """The graph of `prefill` and `decode_step`.

    embeddings [B, S, dim], position int64 [B] of each first row, then k and v cache of every layer
    -> hidden [B, S, dim] (final-normed), semantic_logits [B, rows] and condition [B, dim] of the last row,
    then the caches.
    `condition` is llm_projection(hidden), which the acoustic head needs once per frame.
    """

    def __init__(self, weights: VoxtralTTSWeights, config: VoxtralTTSConfig, cache_length: int):
        super().__init__()
        head = weights.acoustic_transformer
        self.layers = nn.ModuleList(Block(part) for part in parts_of(weights.layers, BlockWeights))
        self.norm = weights.norm
        self.rotary = RotaryTable(config.head_dim, config.rope_theta, cache_length)
        self.semantic_head: nn.Module = head.semantic_codebook_output
        self.llm_projection: nn.Module = head.llm_projection

    def forward(
        self, embeddings: torch.Tensor, position: torch.Tensor, *caches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        rotation = self.rotary(position[:, None] + torch.arange(embeddings.shape[1]))
        x, written = embeddings, []
        for index, block in enumerate(self.layers):
            x, k_cache, v_cache = block(x, rotation, caches[2 * index], caches[2 * index + 1], position)
            written += [k_cache, v_cache]
        hidden = self.norm(x)
        last = hidden[:, -1]  # [B, dim]
        return hidden, self.semantic_head(last), self.llm_projection(last), *written


class CodeEmbedding(nn.Module):
    """codes int64 [B, K] of one frame -> embedding [B, 1, dim]: the sum of one table row per code book."""

    offsets: torch.Tensor

    def __init__(self, table: nn.Module, offsets: tuple[int, ...]):
        super().__init__()
        self.table = table
        self.register_buffer("offsets", torch.tensor(offsets), persistent=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        embedding: torch.Tensor = self.table(codes + self.offsets).sum(dim=1, keepdim=True)
        return embedding
