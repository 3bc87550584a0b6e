"""The modules of `--split six`: six graphs in the layout of speech-swift's Core ML models.

Values between graphs are [1, channels, 1, 1]. The talker and the code predictor take one position at a call.
Each has two caches [1, layers * heads * head_dim, 1, rows], which every call rewrites with a one-hot mask.
The caller gives both masks. The code predictor returns the logits of all books, and the caller draws the
codes.
"""

import torch
import torch.nn.functional as F
from torch import nn

from voxport.model.config import QwenBlockConfig
from voxport.model.layers.basic import Layer
from voxport.model.layers.block import parts_of
from voxport.model.layers.qwen_block import QwenBlock, QwenBlockWeights, StackWeights
from voxport.model.layers.rope import RotaryTable, Rotation
from voxport.model.qwen3_tts.codec.decoder import (
    CodecBlock,
    CodecDecoder,
)
from voxport.model.qwen3_tts.codec.weights import CodecDecoderWeights, codec_contexts
from voxport.model.qwen3_tts.config import CodecDecoderConfig, PredictorConfig, TalkerConfig
from voxport.model.qwen3_tts.modules import TalkerWeights, TextEmbedding, code_tables

Caches = tuple[torch.Tensor, torch.Tensor]


def channels(row: torch.Tensor) -> torch.Tensor:
    """[1, width] -> [1, width, 1, 1]"""
    return row[:, :, None, None]


class TextProjector(TextEmbedding):
    """input_ids int32 [1] of text -> [1, width, 1, 1]."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return channels(super().forward(ids))


class CodeEmbedder(nn.Module):
    """input_ids int32 [1] of the talker's vocabulary -> [1, width, 1, 1]."""

    def __init__(self, weights: TalkerWeights):
        super().__init__()
        self.table = code_tables(weights)[0]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return channels(self.table(ids))


class MultiCodeEmbedder(nn.Module):
    """input_ids int32 [1] -> [1, width, 1, 1]: row `id % codes` of the predictor's table `id // codes`."""

    def __init__(self, weights: TalkerWeights, codes: int):
        super().__init__()
        self.codes, self.tables = codes, code_tables(weights)[1:]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = []
        for index, table in enumerate(self.tables):
            code = ids - index * self.codes
            is_here = torch.logical_and(code >= 0, code < self.codes)
            row = table(code.clamp(0, self.codes - 1))
            rows.append(torch.where(is_here[:, None], row, torch.zeros_like(row)))
        return channels(torch.stack(rows).sum(dim=0))


class OneHotStack(nn.Module):
    """Blocks and their norm, for one position at a call."""

    def __init__(self, weights: StackWeights, config: QwenBlockConfig, rows: int):
        super().__init__()
        self.layers = nn.ModuleList(QwenBlock(part) for part in parts_of(weights.layers, QwenBlockWeights))
        self.blocks, self.norm = parts_of(self.layers, QwenBlock), weights.norm
        self.heads, self.head_dim = config.num_key_value_heads, config.head_dim
        self.rotary = RotaryTable(config.head_dim, config.rope_theta, rows, interleaved=False)

    def forward(
        self,
        x: torch.Tensor,
        position: torch.Tensor,
        padding: torch.Tensor,
        update: torch.Tensor,
        caches: Caches,
    ) -> tuple[torch.Tensor, Caches]:
        """x [1, 1, width], position int32 [1], two masks [1, rows], caches -> normed [1, 1, width], caches.

        `padding` is 0 for rows that attention reads and -1e4 for the others. `update` is 1 for the row that
        is written and 0 for the others.
        """
        rotation, size = self.rotary(position.long()[:, None]), self.heads * self.head_dim
        written: list[Caches] = []
        for index, block in enumerate(self.blocks):
            part = slice(index * size, (index + 1) * size)
            x, after = self._block(
                block, x, rotation, padding, update, (caches[0][:, part], caches[1][:, part])
            )
            written.append(after)
        # one assignment of each state: Core ML's GPU runner computes several of them wrongly
        keys, values = (torch.cat(parts, dim=1) for parts in zip(*written, strict=True))
        return self.norm(x), (keys, values)

    def _block(
        self,
        block: QwenBlock,
        x: torch.Tensor,
        rotation: Rotation,
        padding: torch.Tensor,
        update: torch.Tensor,
        caches: Caches,
    ) -> tuple[torch.Tensor, Caches]:
        q, k, v = block.attention.project(block.attention_norm(x))
        q, k = rotation.both(q, k)
        chosen = update[:, None, None]  # [1, 1, 1, rows]
        keys, values = (
            cache * (1 - chosen) + new.reshape(1, -1, 1, 1) * chosen
            for cache, new in zip(caches, (k, v), strict=True)
        )
        grouped = q.reshape(1, self.heads, -1, self.head_dim) * self.head_dim**-0.5
        # [1, heads, head_dim, rows]
        visible_keys, visible_values = (
            each.reshape(1, self.heads, self.head_dim, -1) for each in (keys, values)
        )
        weights = (grouped @ visible_keys + padding[:, None, None]).softmax(dim=-1)
        attended = (weights @ visible_values.transpose(2, 3)).reshape(1, 1, -1)
        x = x + block.attention.wo(attended)
        return x + block.mlp(block.mlp_norm(x)), (keys, values)


class CodeDecoder(nn.Module):
    """One position of the talker: input_embeds [1, width, 1, 1], cache_length int32 [1] (the position), two
    masks [1, rows] and two caches -> logits [1, 1, vocab_size], hidden_states [1, width, 1, 1], both caches.
    """

    def __init__(self, weights: TalkerWeights, config: TalkerConfig, cache_length: int):
        super().__init__()
        self.stack = OneHotStack(weights.model, config, cache_length)
        self.head: Layer = weights.codec_head

    def forward(
        self,
        embeds: torch.Tensor,
        position: torch.Tensor,
        padding: torch.Tensor,
        update: torch.Tensor,
        *caches: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        x = embeds.flatten(1)[:, None]
        hidden, written = self.stack(x, position, padding, update, caches)
        return self.head(hidden), channels(hidden[:, 0]), *written


class MultiCodeDecoder(nn.Module):
    """One position of the code predictor, with the inputs of `CodeDecoder` -> all_logits [1, books - 1,
    codes], hidden_states [1, its width, 1, 1], both caches.

    Row p - 1 of the logits belongs to the book whose code follows position p.
    """

    def __init__(self, weights: TalkerWeights, config: PredictorConfig):
        super().__init__()
        own = weights.code_predictor
        self.stack = OneHotStack(own.model, config, config.num_code_groups)
        self.heads = own.lm_head
        self.projection: Layer = own.small_to_mtp_projection

    def forward(
        self,
        embeds: torch.Tensor,
        position: torch.Tensor,
        padding: torch.Tensor,
        update: torch.Tensor,
        *caches: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        x = self.projection(embeds.flatten(1)[:, None])
        hidden, written = self.stack(x, position, padding, update, caches)
        logits = torch.cat([head(hidden) for head in self.heads], dim=1)
        return logits, channels(hidden[:, 0]), *written


class SpeechDecoder(CodecDecoder):
    """audio_codes int32 [1, K, T] -> audio [1, T * samples_per_frame], without states.

    It is causal, so codes behind a frame have no effect on the samples of the frame.
    """

    def __init__(self, weights: CodecDecoderWeights, config: CodecDecoderConfig):
        super().__init__(weights, config)
        self.window = config.sliding_window
        self.context_shapes = [(1, width, columns) for _, width, columns in codec_contexts(config)]

    def forward(self, codes: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        contexts = [torch.zeros(shape) for shape in self.context_shapes]
        position = torch.zeros(1, dtype=torch.int64)
        _, _, _, _, audio, *_ = self.stages(codes.transpose(1, 2).long(), position, *contexts)
        return (audio[:, 0],)

    def transform(
        self, x: torch.Tensor, position: torch.Tensor, caches: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        steps = torch.arange(x.shape[1])
        distance = steps[:, None] - steps[None]
        visible = torch.logical_and(distance >= 0, distance < self.window)
        rotation = self.rotary(steps[None])
        for block in parts_of(self.layers, CodecBlock):
            q, k, v = block.attention.project(block.attention_norm(x))
            q, k, v = (part.transpose(1, 2) for part in (rotation(q), rotation(k), v))
            k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], dim=1) for part in (k, v))
            attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            x = block.add(x, block.attention.wo(attended.transpose(1, 2).flatten(-2)))
        return x, []
