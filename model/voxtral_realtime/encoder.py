"""The audio encoder of Voxtral-Realtime: log-mel frames to one embedding per token, causal, with all it carries as explicit state.

A whole recording and 80 ms of a live one run the same code: a recording is a call at position 0, or some calls one after another.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from model.layers.attention import Attention
from model.layers.feed_forward import FeedForward
from model.layers.norm import RMSNorm
from model.layers.rope import RollingRotaryTable
from model.voxtral_realtime.config import CONV_STRIDE, KERNEL, EncoderArgs, VoxtralRealtimeConfig


class ConvLayer(nn.Module):
    """Holder that gives a convolution its published name, `….conv`."""

    def __init__(self, channels: int, out: int):
        super().__init__()
        self.conv = nn.Conv1d(channels, out, KERNEL)

    def spelled(self) -> tuple[torch.Tensor, torch.Tensor]:
        """As a product over a row of KERNEL inputs, the earliest first: weight [out, KERNEL · channels], bias [out]."""
        return self.conv.weight.detach().permute(0, 2, 1).flatten(1), self.conv.bias.detach()


class EncoderBlock(nn.Module):
    """Pre-norm: x + attention(norm x), then x + feed_forward(norm x)."""

    def __init__(self, args: EncoderArgs):
        super().__init__()
        self.attention = Attention(args.dim, args.n_heads, args.n_kv_heads, args.head_dim, biases=True)
        self.attention_norm = RMSNorm(args.dim, args.norm_eps)
        self.feed_forward = FeedForward(args.dim, args.hidden_dim, bias=True)
        self.ffn_norm = RMSNorm(args.dim, args.norm_eps)

    def forward(self, x, rotation, k_cache, v_cache, turn):
        attended, k_cache, v_cache = self.attention(self.attention_norm(x), rotation, k_cache, v_cache, turn)
        x = x + attended
        return x + self.feed_forward(self.ffn_norm(x)), k_cache, v_cache


class EncoderStack(nn.Module):
    def __init__(self, args: EncoderArgs):
        super().__init__()
        self.layers = nn.ModuleList(EncoderBlock(args) for _ in range(args.n_layers))
        self.norm = RMSNorm(args.dim, args.norm_eps)


class WhisperEncoder(nn.Module):
    """All `whisper_encoder.*` tensors of a checkpoint."""

    def __init__(self, args: EncoderArgs):
        super().__init__()
        self.conv_layers = nn.ModuleList(
            [ConvLayer(args.audio_encoding_args.num_mel_bins, args.dim), ConvLayer(args.dim, args.dim)]
        )
        self.transformer = EncoderStack(args)


class EncoderGraph(nn.Module):
    """mel [1, T, F, M] (F frames of 10 ms for each of T tokens), position int64 [1] (tokens encoded before), conv_0 [1, 2, M],
    conv_1 [1, 1, dim], k and v cache of every layer -> embeddings [1, T, decoder dim], then the states.

    At position 0 the states have no effect, if they are finite.
    """

    def __init__(self, encoder: WhisperEncoder, projection: nn.Module, config: VoxtralRealtimeConfig):
        super().__init__()
        self.layers, self.norm, self.projection = (
            encoder.transformer.layers,
            encoder.transformer.norm,
            projection,
        )
        self.downsample = config.downsample
        self.rotary = RollingRotaryTable(config.encoder.head_dim, config.encoder.rope_theta)
        for index, layer in enumerate(encoder.conv_layers):
            weight, bias = layer.spelled()
            self.register_buffer(f"weight_{index}", weight, persistent=False)
            self.register_buffer(f"bias_{index}", bias, persistent=False)

    def forward(self, mel: torch.Tensor, position: torch.Tensor, *states: torch.Tensor):
        conv_0, conv_1, *caches = states
        later = (position > 0).to(mel.dtype)[:, None, None]
        x, conv_0, conv_1 = self._stem(mel.flatten(1, 2), conv_0 * later, conv_1 * later)
        first = position * self.downsample
        rotation = self.rotary(first[:, None] + torch.arange(x.shape[1]))
        turn, written = self.layers[0].attention.turn(first, x.shape[1], caches[0]), []
        for index, block in enumerate(self.layers):
            x, k_cache, v_cache = block(x, rotation, caches[2 * index], caches[2 * index + 1], turn)
            written += [k_cache, v_cache]
        stacked = self.norm(x).unflatten(1, (-1, self.downsample)).flatten(2)  # [1, T, downsample · dim]
        return self.projection(stacked), conv_0, conv_1, *written

    def _stem(
        self, mel: torch.Tensor, before_0: torch.Tensor, before_1: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """mel [1, S, M] with the two frames before it; of the first convolution's output the one before -> [1, S / 2, dim], and what the
        next call needs. Frame t of the second sees 2t - 1, 2t and 2t + 1 of the first."""
        weights = ((self.weight_0, self.bias_0), (self.weight_1, self.bias_1))
        mel = torch.cat((before_0, mel), dim=1)
        length = mel.shape[1] - (KERNEL - 1)
        x = F.gelu(
            F.linear(torch.cat([mel.narrow(1, k, length) for k in range(KERNEL)], dim=-1), *weights[0])
        )
        earlier = torch.cat((before_1, x), dim=1)
        pairs = x.unflatten(1, (-1, CONV_STRIDE))  # 2t and 2t + 1
        behind = earlier.narrow(1, 0, length).unflatten(1, (-1, CONV_STRIDE))[:, :, 0]  # 2t - 1
        y = F.gelu(F.linear(torch.cat((behind, pairs.flatten(2)), dim=-1), *weights[1]))
        return y, mel.narrow(1, length, KERNEL - 1), earlier.narrow(1, length, 1)
