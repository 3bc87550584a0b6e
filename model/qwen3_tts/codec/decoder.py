"""The decoder of the speech tokenizer: codes to samples, with explicit state.

Every convolution is causal: its state is the end of its earlier input, which is zeros before the first
frame. A transposed convolution of kernel 2r and stride r makes r samples from an input and the one before it.
So whole utterances and single frames run the same code and give the same samples.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from voxport.model.layers.attention import Attention, Update, cache_update
from voxport.model.layers.basic import Layer, RMSNorm
from voxport.model.layers.block import parts_of, run_blocks
from voxport.model.layers.codebook import codebook_entries
from voxport.model.layers.containers import conv_of, module_dict
from voxport.model.layers.rope import Rotation, UnboundedRotaryTable
from voxport.model.qwen3_tts.blocks import AttentionWeights, GatedMLP, MLPWeights
from voxport.model.qwen3_tts.components import DILATIONS, INPUT_KERNEL, KERNEL, codec_contexts
from voxport.model.qwen3_tts.config import CodecDecoderConfig

SNAKE_FLOOR = 1e-9


class CodebookWeights(nn.Module):
    """One residual quantiser of `layers` tables, and the projection of their sum."""

    def __init__(self, config: CodecDecoderConfig, layers: int):
        super().__init__()
        size, width = config.codebook_size, config.codebook_dim // 2
        tables = [
            nn.ParameterDict({"embedding_sum": torch.empty(size, width), "cluster_usage": torch.empty(size)})
            for _ in range(layers)
        ]
        self.vq = module_dict(layers=nn.ModuleList(module_dict(_codebook=table) for table in tables))
        self.output_proj = nn.Conv1d(width, config.codebook_dim, 1, bias=False)

    def projected_entries(self) -> torch.Tensor:
        """Projected entries of every table: float32 [layers, size, codebook_dim]."""
        project, tables = self.output_proj.weight[..., 0].T, []
        for layer in self.vq["layers"].children():
            book = layer.get_submodule("_codebook")
            entries = codebook_entries(
                book.get_parameter("embedding_sum"), book.get_parameter("cluster_usage")
            )
            tables.append(entries @ project)
        return torch.stack(tables)


class ScaleWeights(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(width))


class CodecBlockWeights(nn.Module):
    """A block with a learned scale per channel on both branches, and no norms of queries and keys."""

    def __init__(self, config: CodecDecoderConfig):
        super().__init__()
        self.self_attn, self.mlp = AttentionWeights(config, has_norms=False), MLPWeights(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn_layer_scale = ScaleWeights(config.hidden_size)
        self.mlp_layer_scale = ScaleWeights(config.hidden_size)


class ConvNeXtWeights(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dwconv = module_dict(conv=nn.Conv1d(width, width, KERNEL, groups=width))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.empty(width))


class SnakeWeights(nn.Module):
    """Logarithms of frequency and amplitude per channel."""

    def __init__(self, width: int):
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.empty(width)), nn.Parameter(torch.empty(width))


class ResidualWeights(nn.Module):
    def __init__(self, width: int, dilation: int):
        super().__init__()
        self.act1, self.act2 = SnakeWeights(width), SnakeWeights(width)
        self.conv1 = module_dict(conv=nn.Conv1d(width, width, KERNEL, dilation=dilation))
        self.conv2 = module_dict(conv=nn.Conv1d(width, width, 1))


def _stage_weights(width: int, next_width: int, rate: int) -> nn.ModuleDict:
    parts = [SnakeWeights(width), module_dict(conv=nn.ConvTranspose1d(width, next_width, 2 * rate, rate))]
    return module_dict(
        block=nn.ModuleList([*parts, *(ResidualWeights(next_width, each) for each in DILATIONS)])
    )


class CodecDecoderWeights(nn.Module):
    """All `decoder.*` tensors that decoding needs."""

    def __init__(self, config: CodecDecoderConfig):
        super().__init__()
        latent, width = config.latent_dim, config.hidden_size
        others = config.num_quantizers - config.num_semantic_quantizers
        self.quantizer = module_dict(
            rvq_first=CodebookWeights(config, config.num_semantic_quantizers),
            rvq_rest=CodebookWeights(config, others),
        )
        self.pre_conv = module_dict(conv=nn.Conv1d(config.codebook_dim, latent, INPUT_KERNEL))
        self.pre_transformer = module_dict(
            input_proj=nn.Linear(latent, width),
            layers=nn.ModuleList(CodecBlockWeights(config) for _ in range(config.num_hidden_layers)),
            norm=RMSNorm(width, config.rms_norm_eps),
            output_proj=nn.Linear(width, latent),
        )
        self.upsample = nn.ModuleList(
            nn.ModuleList(
                [module_dict(conv=nn.ConvTranspose1d(latent, latent, rate, rate)), ConvNeXtWeights(latent)]
            )
            for rate in config.upsampling_ratios
        )
        widths = [config.decoder_dim >> stage for stage in range(len(config.upsample_rates) + 1)]
        stages = [
            _stage_weights(*pair, rate)
            for pair, rate in zip(pairwise(widths), config.upsample_rates, strict=True)
        ]
        self.decoder = nn.ModuleList(
            [
                module_dict(conv=nn.Conv1d(latent, widths[0], KERNEL)),
                *stages,
                SnakeWeights(widths[-1]),
                module_dict(conv=nn.Conv1d(widths[-1], 1, KERNEL)),
            ]
        )


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
    """x [1, C, T] -> [1, C', rate · T], with one column of state where the kernel is twice the rate."""

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
