"""The causal audio encoder of Voxtral-Realtime: log-mel frames to one embedding per token.

State is explicit. A recording and 80 ms of a live stream run the same code.
"""

import torch
import torch.nn.functional as F
from torch import nn

from model.layers.attention import cache_update
from model.layers.block import Block, BlockWeights, parts_of
from model.layers.rope import UnboundedRotaryTable
from model.voxtral_realtime.config import CONV_STRIDE, KERNEL, VoxtralRealtimeConfig
from model.voxtral_realtime.weights import AudioWeights, ConvolutionWeights


class Encoder(nn.Module):
    """The graph of `audio_encoder` and `encode_chunk`.

    mel [1, T, F, M] (F frames of 10 ms for each of T tokens), position int64 [1] (tokens encoded before),
    conv_0 [1, 2, M], conv_1 [1, 1, dim], then k and v cache of every layer
    -> embeddings [1, T, decoder dim], then the states.
    At position 0 the states have no effect if they are finite.
    """

    weight_0: torch.Tensor
    bias_0: torch.Tensor
    weight_1: torch.Tensor
    bias_1: torch.Tensor

    def __init__(self, weights: AudioWeights, config: VoxtralRealtimeConfig):
        super().__init__()
        encoder, args = weights.whisper_encoder, config.encoder
        parts = parts_of(encoder.transformer.layers, BlockWeights)
        self.layers = nn.ModuleList(Block(part, args.sliding_window) for part in parts)
        self.norm, self.projection = encoder.transformer.norm, weights.audio_language_projection
        self.downsample = config.downsample
        self.rotary = UnboundedRotaryTable(args.head_dim, args.rope_theta)
        for index, layer in enumerate(parts_of(encoder.conv_layers, ConvolutionWeights)):
            conv = layer.conv
            # as a linear over a row of KERNEL inputs, the earliest first: weight [out, KERNEL · channels]
            weight = conv.weight.detach().permute(0, 2, 1).flatten(1)
            self.register_buffer(f"weight_{index}", weight, persistent=False)
            self.register_buffer(f"bias_{index}", conv.get_parameter("bias").detach(), persistent=False)

    def forward(
        self, mel: torch.Tensor, position: torch.Tensor, *states: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        conv_0, conv_1, *caches = states
        later = (position > 0).to(mel.dtype)[:, None, None]
        x, conv_0, conv_1 = self._stem(mel.flatten(1, 2), conv_0 * later, conv_1 * later)
        first, rows = position * self.downsample, x.shape[1]
        rotation = self.rotary(first[:, None] + torch.arange(rows))
        update = cache_update(self.layers, first, rows, caches[0])
        written = []
        for index, block in enumerate(self.layers):
            x, k_cache, v_cache = block(x, rotation, caches[2 * index], caches[2 * index + 1], update)
            written += [k_cache, v_cache]
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
