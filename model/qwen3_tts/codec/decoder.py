"""The decoder of the speech tokenizer: codes to samples, with explicit state.

Every convolution is causal: its state is the end of its earlier input, which is zeros before the first
frame. A transposed convolution of kernel 2r and stride r makes r samples from an input and the one before it.
So whole utterances and single frames run the same code and give the same samples.
"""

from collections.abc import Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from voxport.model.layers.attention import Attention, Update, cache_update
from voxport.model.layers.basic import Layer, conv_of
from voxport.model.layers.block import parts_of, run_blocks
from voxport.model.layers.qwen_block import GatedMLP
from voxport.model.layers.rope import Rotation, UnboundedRotaryTable
from voxport.model.qwen3_tts.codec.weights import (
    CodebookWeights,
    CodecBlockWeights,
    CodecDecoderWeights,
    ConvNeXtWeights,
    ResidualWeights,
    SnakeWeights,
    codec_contexts,
)
from voxport.model.qwen3_tts.config import CodecDecoderConfig

SNAKE_FLOOR = 1e-9


class States:
    """The states of one call, taken and replaced in order."""

    def __init__(self, states: tuple[torch.Tensor, ...], is_first: torch.Tensor):
        self._left: Iterator[torch.Tensor] = iter(states)
        self._is_first = is_first
        self.written: list[torch.Tensor] = []

    def extend(self, x: torch.Tensor) -> torch.Tensor:
        """x [1, C, T] behind the end of the earlier input, which becomes the end of both."""
        before = next(self._left)
        whole = torch.cat((torch.where(self._is_first, 0.0, before), x), dim=-1)
        self.written.append(whole[..., whole.shape[-1] - before.shape[-1] :])
        return whole

    def take(self, count: int) -> tuple[torch.Tensor, ...]:
        """Caches, which the caller writes."""
        return tuple(next(self._left) for _ in range(count))


class CausalConv(nn.Module):
    """x [1, C, T] -> [1, C', T], with (kernel - 1) · dilation columns of state."""

    def __init__(self, weights: nn.Module):
        super().__init__()
        self.conv = conv_of(weights)

    @property
    def context(self) -> int:
        return (self.conv.kernel_size[0] - 1) * self.conv.dilation[0]

    def forward(self, x: torch.Tensor, states: States) -> torch.Tensor:
        y: torch.Tensor = self.conv(states.extend(x) if self.context else x)
        return y


class Upsampler(nn.Module):
    """x [1, C, T] -> [1, C', rate · T], with one column of state if the kernel is twice the rate."""

    def __init__(self, weights: nn.Module):
        super().__init__()
        conv = weights.get_submodule("conv")
        assert isinstance(conv, nn.ConvTranspose1d)
        self.rate, self.context = conv.stride[0], conv.kernel_size[0] // conv.stride[0] - 1
        # [C, C', kernel] -> [rate · C', C, context + 1], the oldest input first
        taps = conv.weight.unflatten(-1, (self.context + 1, self.rate)).flip(2)
        self.weight = nn.Buffer(taps.permute(3, 1, 0, 2).flatten(0, 1).contiguous(), persistent=False)
        assert conv.bias is not None
        self.bias = nn.Buffer(conv.bias.repeat(self.rate), persistent=False)

    def forward(self, x: torch.Tensor, states: States) -> torch.Tensor:
        y = F.conv1d(states.extend(x) if self.context else x, self.weight, self.bias)
        samples: torch.Tensor = y.unflatten(1, (self.rate, -1)).permute(0, 2, 3, 1).flatten(2)
        return samples


class SnakeBeta(nn.Module):
    """x + sin²(x · e^alpha) / (e^beta + 1e-9) per channel of x [1, C, T]."""

    def __init__(self, weights: SnakeWeights):
        super().__init__()
        self.frequency = nn.Buffer(weights.alpha.exp()[:, None], persistent=False)
        self.amplitude = nn.Buffer(1 / (weights.beta.exp() + SNAKE_FLOOR)[:, None], persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wave = (x * self.frequency).sin()
        return x + self.amplitude * (wave * wave)  # ONNX Runtime computes a power in 4 times the time


class ResidualUnit(nn.Module):
    def __init__(self, weights: ResidualWeights):
        super().__init__()
        self.first, self.second = SnakeBeta(weights.act1), SnakeBeta(weights.act2)
        self.wide, self.narrow = CausalConv(weights.conv1), CausalConv(weights.conv2)

    def forward(self, x: torch.Tensor, states: States) -> torch.Tensor:
        y: torch.Tensor = self.narrow(self.second(self.wide(self.first(x), states)), states)
        return x + y


class ConvNeXt(nn.Module):
    def __init__(self, weights: ConvNeXtWeights):
        super().__init__()
        self.depthwise, self.norm = CausalConv(weights.dwconv), weights.norm
        self.up: Layer = weights.pwconv1
        self.down: Layer = weights.pwconv2
        self.gamma = weights.gamma

    def forward(self, x: torch.Tensor, states: States) -> torch.Tensor:
        y = self.norm(self.depthwise(x, states).transpose(1, 2))
        return x + (self.gamma * self.down(F.gelu(self.up(y)))).transpose(1, 2)


class CodecAttention(Attention):
    names = ("q_proj", "k_proj", "v_proj", "o_proj")


class CodecBlock(nn.Module):
    """A block within a sliding window."""

    def __init__(self, weights: CodecBlockWeights, window: int):
        super().__init__()
        self.attention, self.mlp = CodecAttention(weights.self_attn, window), GatedMLP(weights.mlp)
        self.attention_norm, self.mlp_norm = weights.input_layernorm, weights.post_attention_layernorm
        self.attention_scale = weights.self_attn_layer_scale.scale
        self.mlp_scale = weights.mlp_layer_scale.scale

    def forward(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        where: Update,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [1, T, width], two caches and the cache update of the call -> x, both caches."""
        attended, k_cache, v_cache = self.attention(self.attention_norm(x), rotation, k_cache, v_cache, where)
        return self.add(x, attended), k_cache, v_cache

    def add(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """x and the result of attention [1, T, width] -> the output of the block."""
        x = x + self.attention_scale * attended
        y: torch.Tensor = x + self.mlp_scale * self.mlp(self.mlp_norm(x))
        return y


class CodecDecoder(nn.Module):
    """The graph of `codec` and `codec_step`.

    codes int64 [1, T, K], position int64 [1] (frames decoded before), caches, states of the convolutions
    -> audio [1, T · samples_per_frame], caches, states. At position 0 the states have no effect if they are
    finite.
    """

    def __init__(self, weights: CodecDecoderWeights, config: CodecDecoderConfig):
        super().__init__()
        self.size, self.contexts = config.codebook_size, len(codec_contexts(config))
        quantizers = parts_of(weights.quantizer.children(), CodebookWeights)
        books = torch.cat([each.projected_entries() for each in quantizers])  # [K, size, codebook_dim]
        self.offsets = nn.Buffer(torch.arange(len(books)) * self.size, persistent=False)
        self.books = nn.Buffer(books.flatten(0, 1), persistent=False)
        self.pre_conv = CausalConv(weights.pre_conv)
        stack = weights.pre_transformer
        self.input_proj: Layer = stack["input_proj"]
        self.output_proj: Layer = stack["output_proj"]
        self.layers = nn.ModuleList(
            CodecBlock(part, config.sliding_window)
            for part in parts_of(stack["layers"].children(), CodecBlockWeights)
        )
        self.norm: Layer = stack["norm"]
        self.rotary = UnboundedRotaryTable(config.head_dim, config.rope_theta, interleaved=False)
        self.upsample = nn.ModuleList()
        for pair in weights.upsample:
            conv, block = pair.children()
            self.upsample.extend([Upsampler(conv), ConvNeXt(cast(ConvNeXtWeights, block))])
        first, *stages, snake, last = weights.decoder
        self.convs = nn.ModuleList([CausalConv(first)])
        for stage in stages:
            activation, conv, *units = stage.get_submodule("block").children()
            self.convs.extend([SnakeBeta(cast(SnakeWeights, activation)), Upsampler(conv)])
            self.convs.extend(map(ResidualUnit, parts_of(units, ResidualWeights)))
        self.convs.extend([SnakeBeta(cast(SnakeWeights, snake)), CausalConv(last)])

    def stages(
        self, codes: torch.Tensor, position: torch.Tensor, *states: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """The values between the stages, [1, C, T] each: quantized, pre_conv, pre_transformer, upsampled,
        audio; then the states.
        """
        rows = self.books[codes.clamp(0, self.size - 1) + self.offsets]  # [1, T, K, dim]
        x = rows.sum(dim=2).transpose(1, 2)
        yield x
        count = len(states) - self.contexts
        left = States(states[count:], position == 0)
        x = self.pre_conv(x, left)
        yield x
        y, caches = self.transform(self.input_proj(x.transpose(1, 2)), position, states[:count])
        x = self.output_proj(self.norm(y)).transpose(1, 2)
        yield x
        for part in self.upsample:
            x = part(x, left)
        yield x
        for part in self.convs:
            x = part(x) if isinstance(part, SnakeBeta) else part(x, left)
        yield x.clamp(-1, 1)
        yield from (*caches, *left.written)

    def transform(
        self, x: torch.Tensor, position: torch.Tensor, caches: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """x [1, T, width] through the transformer blocks -> x, caches."""
        rotation = self.rotary(position[:, None] + torch.arange(x.shape[1]))
        update = cache_update(self.layers, position, x.shape[1], caches[0])
        return run_blocks(self.layers, x, rotation, caches, update)

    def forward(
        self, codes: torch.Tensor, position: torch.Tensor, *states: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        _, _, _, _, audio, *written = self.stages(codes, position, *states)
        return audio[:, 0], *written
