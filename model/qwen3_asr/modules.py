"""The holder of all tensors, and the audio encoder of Qwen3-ASR.

The holder has parameters of the published names and computes nothing.
"""

import torch
import torch.nn.functional as F
from torch import nn

from voxport.model.layers.basic import Layer
from voxport.model.layers.block import parts_of
from voxport.model.layers.qwen_block import StackWeights
from voxport.model.qwen3_asr.config import (
    CHUNK_FRAMES,
    CHUNK_ROWS,
    DecoderConfig,
    EncoderConfig,
    Qwen3ASRConfig,
    ThinkerConfig,
)

KERNEL, STRIDE, CONVOLUTIONS = 3, 2, 3
POSITION_BASE = 10000.0


class EncoderAttentionWeights(nn.Module):
    """Parameters of `self_attn` of the encoder."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        width = config.d_model
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.out_proj = nn.Linear(width, width), nn.Linear(width, width)


class EncoderBlockWeights(nn.Module):
    """Parameters of a block of the encoder."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.self_attn = EncoderAttentionWeights(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model)
        self.fc1 = nn.Linear(config.d_model, config.encoder_ffn_dim)
        self.fc2 = nn.Linear(config.encoder_ffn_dim, config.d_model)
        self.final_layer_norm = nn.LayerNorm(config.d_model)


class EncoderWeights(nn.Module):
    """All `thinker.audio_tower.*` tensors."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        channels, rows = config.downsample_hidden_size, config.num_mel_bins // STRIDE**CONVOLUTIONS
        self.conv2d1 = nn.Conv2d(1, channels, KERNEL, STRIDE)
        self.conv2d2 = nn.Conv2d(channels, channels, KERNEL, STRIDE)
        self.conv2d3 = nn.Conv2d(channels, channels, KERNEL, STRIDE)
        self.conv_out = nn.Linear(channels * rows, config.d_model, bias=False)
        self.layers = nn.ModuleList(EncoderBlockWeights(config) for _ in range(config.encoder_layers))
        self.ln_post = nn.LayerNorm(config.d_model)
        self.proj1 = nn.Linear(config.d_model, config.d_model)
        self.proj2 = nn.Linear(config.d_model, config.output_dim)


class DecoderWeights(StackWeights):
    """All `thinker.model.*` tensors."""

    def __init__(self, config: DecoderConfig):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)


class ThinkerWeights(nn.Module):
    """All tensors. A tied head is stored as well, and is the token table, as the published code loads it."""

    def __init__(self, config: ThinkerConfig):
        super().__init__()
        text = config.text_config
        self.audio_tower = EncoderWeights(config.audio_config)
        self.model = DecoderWeights(text)
        self.lm_head = nn.Linear(text.hidden_size, config.classify_num or text.vocab_size, bias=False)
        if text.tie_word_embeddings and not config.classify_num:
            self.lm_head.weight = self.model.embed_tokens.weight


class Qwen3ASRWeights(nn.Module):
    def __init__(self, config: Qwen3ASRConfig):
        super().__init__()
        self.thinker = ThinkerWeights(config.thinker_config)


def positions(width: int) -> torch.Tensor:
    """float32 [CHUNK_ROWS, width]: sines, then cosines. Each chunk counts its rows from 0."""
    half = width // 2
    frequency = POSITION_BASE ** -(torch.arange(half, dtype=torch.float64) / (half - 1))
    angle = torch.arange(CHUNK_ROWS, dtype=torch.float64)[:, None] * frequency
    return torch.cat((angle.sin(), angle.cos()), dim=1).float()


def rows_of(frames: torch.Tensor) -> torch.Tensor:
    """Rows that the encoder gives for int64 frames: each convolution halves a chunk, rounded up."""
    rest = frames % CHUNK_FRAMES
    for _ in range(CONVOLUTIONS):
        rest = (rest + STRIDE - 1) // STRIDE
    return frames // CHUNK_FRAMES * CHUNK_ROWS + rest


class EncoderBlock(nn.Module):
    """x + attention(norm x), then x + fc2(gelu(fc1(norm x))). Rows see each other in both directions."""

    def __init__(self, weights: EncoderBlockWeights, heads: int):
        super().__init__()
        self.heads = heads
        attention = weights.self_attn
        self.queries: Layer = attention.q_proj
        self.keys: Layer = attention.k_proj
        self.values: Layer = attention.v_proj
        self.output: Layer = attention.out_proj
        self.up: Layer = weights.fc1
        self.down: Layer = weights.fc2
        self.attention_norm, self.mlp_norm = weights.self_attn_layer_norm, weights.final_layer_norm

    def forward(self, x: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
        """x [1, R, width], visible bool [R, R] (queries and the keys they see) -> x."""
        y = self.attention_norm(x)
        parts = (part(y).unflatten(-1, (self.heads, -1)) for part in (self.queries, self.keys, self.values))
        q, k, v = (part.transpose(1, 2) for part in parts)  # [B, H, R, D]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2).flatten(-2)
        x = x + self.output(attended)
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Encoder(nn.Module):
    """The graph of `audio_encoder`: one window of attention, of up to `window_chunks` chunks.

    mel [1, C, 100, mels], frames int64 [1] (before the end of the recording), is_short int64 [1] (1 if the
    whole recording has less than one chunk) -> embeddings [1, 13 · C, decoder width], of which the first
    `rows_of(frames)` count.

    Frames behind `frames` are zeros. The published code convolves a short recording without them, and the
    last chunk of a longer one with them.
    """

    def __init__(self, weights: EncoderWeights, config: EncoderConfig):
        super().__init__()
        self.convolutions = nn.ModuleList((weights.conv2d1, weights.conv2d2, weights.conv2d3))
        self.conv_out: Layer = weights.conv_out
        blocks = parts_of(weights.layers, EncoderBlockWeights)
        self.layers = nn.ModuleList(EncoderBlock(part, config.encoder_attention_heads) for part in blocks)
        self.norm, self.proj1, self.proj2 = weights.ln_post, weights.proj1, weights.proj2
        self.positions = nn.Buffer(positions(config.d_model), persistent=False)

    def embed(self, mel: torch.Tensor, frames: torch.Tensor, is_short: torch.Tensor) -> torch.Tensor:
        """The rows before the blocks: [1, 13 · C, width]."""
        x = mel.transpose(0, 1).transpose(2, 3)  # [C, 1, mels, 100]
        length = is_short * frames + (1 - is_short) * CHUNK_FRAMES
        for convolution in self.convolutions:
            column = torch.arange(x.shape[-1])
            x = torch.where(column >= length, 0.0, x)  # as its padding would be
            x = F.gelu(convolution(F.pad(x, (1, 1, 1, 1))))
            length = (length + STRIDE - 1) // STRIDE
        x = self.conv_out(x.permute(0, 3, 1, 2).flatten(2).flatten(0, 1)[None])  # [1, 13 · C, width]
        found: torch.Tensor = x.unflatten(1, (-1, len(self.positions))) + self.positions
        return found.flatten(1, 2)

    def forward(self, mel: torch.Tensor, frames: torch.Tensor, is_short: torch.Tensor) -> torch.Tensor:
        x = self.embed(mel, frames, is_short)
        keys = torch.arange(x.shape[1])
        visible = keys[None] + 0 * keys[:, None] < rows_of(frames)  # the same for every query
        for layer in self.layers:
            x = layer(x, visible)
        embeddings: torch.Tensor = self.proj2(F.gelu(self.proj1(self.norm(x))))
        return embeddings
