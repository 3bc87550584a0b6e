"""The modules of Voxtral-Realtime: holders of the checkpoint's tensors, the encoder and the decoder.

Holders have parameters of the published names and compute nothing. `graphs.py` makes the computing modules
from them.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from voxport.model.layers.attention import Update, cache_update
from voxport.model.layers.basic import RMSNorm
from voxport.model.layers.block import Block, BlockWeights, PreNorm, parts_of, run_blocks
from voxport.model.layers.rope import Rotation, UnboundedRotaryTable
from voxport.model.voxtral_realtime.config import AUDIO, CONV_STRIDE, KERNEL, Options, VoxtralRealtimeConfig

DELAY_BASE = 10000.0


class AudioWeights(nn.Module):
    """All `mm_streams_embeddings.embedding_module.*` tensors: token table, encoder and adapter."""

    def __init__(self, config: VoxtralRealtimeConfig):
        super().__init__()
        args, mels = config.encoder, config.audio.num_mel_bins
        self.tok_embeddings = nn.Embedding(config.vocab_size, config.dim)
        convolutions = (nn.Conv1d(mels, args.dim, KERNEL), nn.Conv1d(args.dim, args.dim, KERNEL))
        blocks = (BlockWeights(args, biases=True) for _ in range(args.n_layers))
        stack = {"layers": nn.ModuleList(blocks), "norm": RMSNorm(args.dim, args.norm_eps)}
        self.whisper_encoder = nn.ModuleDict(
            {
                "conv_layers": nn.ModuleList(nn.ModuleDict({"conv": conv}) for conv in convolutions),
                "transformer": nn.ModuleDict(stack),
            }
        )
        self.audio_language_projection = nn.Sequential(
            nn.Linear(args.dim * config.downsample, config.dim, bias=False),
            nn.GELU(),
            nn.Linear(config.dim, config.dim, bias=False),
        )


class DecoderBlockWeights(BlockWeights):
    """A decoder block, with the two linears that scale its second norm by the delay."""

    def __init__(self, config: VoxtralRealtimeConfig):
        super().__init__(config)
        inner = config.ada_rms_norm_t_cond_dim
        self.ada_rms_norm_t_cond = nn.Sequential(
            nn.Linear(config.dim, inner, bias=False), nn.GELU(), nn.Linear(inner, config.dim, bias=False)
        )


class VoxtralRealtimeWeights(nn.Module):
    """All tensors of a checkpoint, and the output head.

    Head and token table are one parameter, unless a recipe quantises them separately.
    """

    def __init__(self, config: VoxtralRealtimeConfig):
        super().__init__()
        self.mm_streams_embeddings = nn.ModuleDict({"embedding_module": AudioWeights(config)})
        self.layers = nn.ModuleList(DecoderBlockWeights(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.output.weight = self.audio.tok_embeddings.weight

    @property
    def audio(self) -> AudioWeights:
        return cast(AudioWeights, self.get_submodule(AUDIO))


class Encoder(nn.Module):
    """The graph of `audio_encoder` and `encode_chunk`.

    mel [1, T, F, M] (F frames of 10 ms for each of T tokens), position int64 [1] (tokens encoded before),
    conv_0 [1, 2, M], conv_1 [1, 1, dim], then k and v cache of every layer
    -> embeddings [1, T, decoder dim], then the states.
    At position 0 the states have no effect if they are finite.
    """

    def __init__(self, weights: AudioWeights, config: VoxtralRealtimeConfig):
        super().__init__()
        encoder, args = weights.whisper_encoder, config.encoder
        parts = parts_of(encoder.get_submodule("transformer.layers").children(), BlockWeights)
        self.layers = nn.ModuleList(Block(part, args.sliding_window) for part in parts)
        self.norm = encoder.get_submodule("transformer.norm")
        self.projection = weights.audio_language_projection
        self.downsample = config.downsample
        self.rotary = UnboundedRotaryTable(args.head_dim, args.rope_theta)
        convolutions = parts_of(encoder.modules(), nn.Conv1d)
        # as linears over a row of KERNEL inputs, the earliest first: weight [out, KERNEL · channels]
        rows = [conv.weight.detach().permute(0, 2, 1).flatten(1) for conv in convolutions]
        biases = [conv.get_parameter("bias").detach() for conv in convolutions]
        self.weight_0 = nn.Buffer(rows[0], persistent=False)
        self.bias_0 = nn.Buffer(biases[0], persistent=False)
        self.weight_1 = nn.Buffer(rows[1], persistent=False)
        self.bias_1 = nn.Buffer(biases[1], persistent=False)

    def forward(
        self, mel: torch.Tensor, position: torch.Tensor, *states: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        conv_0, conv_1, caches = states[0], states[1], states[2:]
        later = (position > 0).to(mel.dtype)[:, None, None]
        x, conv_0, conv_1 = self._stem(mel.flatten(1, 2), conv_0 * later, conv_1 * later)
        first, rows = position * self.downsample, x.shape[1]
        rotation = self.rotary(first[:, None] + torch.arange(rows))
        update = cache_update(self.layers, first, rows, caches[0])
        x, written = run_blocks(self.layers, x, rotation, caches, update)
        stacked = self.norm(x).unflatten(1, (-1, self.downsample)).flatten(2)  # [1, T, downsample · dim]
        return self.projection(stacked), conv_0, conv_1, *written

    def _stem(
        self, mel: torch.Tensor, before_0: torch.Tensor, before_1: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The two convolutions: frame t of the second sees frames 2t - 1, 2t and 2t + 1 of the first.

        mel [1, S, M], the two frames before it, and the frame before the first convolution's output
        -> [1, S / 2, dim], and the same two states for the next call.
        """
        mel = torch.cat((before_0, mel), dim=1)
        length = mel.shape[1] - (KERNEL - 1)
        shifted = torch.cat([mel.narrow(1, k, length) for k in range(KERNEL)], dim=-1)
        x = F.gelu(F.linear(shifted, self.weight_0, self.bias_0))
        earlier = torch.cat((before_1, x), dim=1)
        pairs = x.unflatten(1, (-1, CONV_STRIDE))  # 2t and 2t + 1
        behind = earlier.narrow(1, 0, length).unflatten(1, (-1, CONV_STRIDE))[:, :, 0]  # 2t - 1
        y = F.gelu(F.linear(torch.cat((behind, pairs.flatten(2)), dim=-1), self.weight_1, self.bias_1))
        return y, mel.narrow(1, length, KERNEL - 1), earlier.narrow(1, length, 1)


def embed_delay(tokens: int, dim: int) -> torch.Tensor:
    """Cosines, then sines, of the delay in tokens at dim / 2 frequencies: float32 [dim]."""
    frequency = DELAY_BASE ** -(torch.arange(dim // 2, dtype=torch.float64) / (dim // 2))
    return torch.cat(((tokens * frequency).cos(), (tokens * frequency).sin())).float()


class DelayNorm(nn.Module):
    """RMSNorm, then one row of factors per delay."""

    def __init__(self, norm: RMSNorm, scales: torch.Tensor):
        """scales [delays, width]: 1 + scale multiplies the result of `norm`."""
        super().__init__()
        self.norm = norm
        self.factors = nn.Buffer(1 + scales, persistent=False)

    def forward(self, x: torch.Tensor, delay: torch.Tensor) -> torch.Tensor:
        """x [B, S, width], delay int64 [B] (a row of each) -> [B, S, width]."""
        normed: torch.Tensor = self.norm(x)
        return normed * self.factors[delay][:, None]


class DecoderBlock(PreNorm):
    """x + attention(norm x), then x + feed_forward(norm x). The second norm depends on the delay."""

    def __init__(self, weights: DecoderBlockWeights, window: int, delays: torch.Tensor):
        """delays [n, dim]: the embedding of each delay."""
        super().__init__(weights, window)
        self.ffn_norm = DelayNorm(weights.ffn_norm, weights.ada_rms_norm_t_cond(delays))

    def forward(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        update: Update,
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

    embeddings [B, S, dim], position int64 [B] of the first, delay int64 [B] (an index into the bundle's
    delays), then k and v cache of every layer
    -> hidden [B, S, dim] (final-normed), logits [B, vocab] of the last row, then the caches.
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
        x, written = run_blocks(self.layers, embeddings, rotation, caches, update, delay)
        hidden = self.norm(x)
        return hidden, self.head(hidden[:, -1]), *written
