"""The encoder of the speech tokenizer: samples to codes, as in Mimi.

Attention sees everything before, whatever `sliding_window` says: so the official package runs it.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from model.layers.basic import Layer
from model.layers.block import parts_of
from model.layers.rope import RotaryTable, Rotation
from model.qwen3_tts.codec import USAGE_FLOOR, ScaleWeights, held
from model.qwen3_tts.config import CodecEncoderConfig


class QuantizerWeights(nn.Module):
    """A residual quantiser of `layers` tables."""

    def __init__(self, config: CodecEncoderConfig, layers: int):
        super().__init__()
        shape = (config.codebook_size, config.codebook_dim)
        tables = (
            nn.ParameterDict({"embed_sum": torch.empty(shape), "cluster_usage": torch.empty(shape[0])})
            for _ in range(layers)
        )
        self.input_proj = nn.Conv1d(config.hidden_size, config.codebook_dim, 1, bias=False)
        self.layers = nn.ModuleList(held(codebook=table) for table in tables)

    def entries(self, count: int) -> list[torch.Tensor]:
        """Entries [size, codebook_dim] of the first tables."""
        books = [layer.get_submodule("codebook") for layer in list(self.layers)[:count]]
        return [
            book.get_parameter("embed_sum")
            / book.get_parameter("cluster_usage").clamp_min(USAGE_FLOOR)[:, None]
            for book in books
        ]


class EncoderAttentionWeights(nn.Module):
    def __init__(self, config: CodecEncoderConfig):
        super().__init__()
        width = config.num_attention_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, width, bias=False)
        self.o_proj = nn.Linear(width, config.hidden_size, bias=False)


class EncoderBlockWeights(nn.Module):
    def __init__(self, config: CodecEncoderConfig):
        super().__init__()
        width = config.hidden_size
        self.self_attn = EncoderAttentionWeights(config)
        self.mlp = held(
            fc1=nn.Linear(width, config.intermediate_size, bias=False),
            fc2=nn.Linear(config.intermediate_size, width, bias=False),
        )
        self.input_layernorm = nn.LayerNorm(width, config.norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(width, config.norm_eps)
        self.self_attn_layer_scale, self.mlp_layer_scale = ScaleWeights(width), ScaleWeights(width)


class EncoderWeights(nn.Module):
    """All `encoder.*` tensors that encoding needs. Names of layers are numbers with gaps, as published."""

    def __init__(self, config: CodecEncoderConfig):
        super().__init__()
        width, layers = (
            config.num_filters,
            {"0": held(conv=nn.Conv1d(1, config.num_filters, config.kernel_size))},
        )
        for rate in reversed(config.upsampling_ratios):
            inner = width // config.compress
            first, second = nn.Conv1d(width, inner, config.residual_kernel_size), nn.Conv1d(inner, width, 1)
            number = 3 * (len(layers) // 2) + 1
            layers[str(number)] = held(block=held(**{"1": held(conv=first), "3": held(conv=second)}))
            layers[str(number + 2)] = held(conv=nn.Conv1d(width, 2 * width, 2 * rate, rate))
            width *= 2
        last = 3 * len(config.upsampling_ratios) + 2
        layers[str(last)] = held(conv=nn.Conv1d(width, config.hidden_size, config.last_kernel_size))
        self.encoder = held(layers=held(**layers))
        blocks = (EncoderBlockWeights(config) for _ in range(config.num_hidden_layers))
        self.encoder_transformer = held(layers=nn.ModuleList(blocks))
        self.downsample = held(conv=nn.Conv1d(config.hidden_size, config.hidden_size, 4, 2, bias=False))
        self.quantizer = held(
            semantic_residual_vector_quantizer=QuantizerWeights(config, config.num_semantic_quantizers),
            acoustic_residual_vector_quantizer=QuantizerWeights(
                config, config.num_quantizers - config.num_semantic_quantizers
            ),
        )


class PaddedConv(nn.Module):
    """x [1, C, T] -> [1, C', ceil(T / stride)]: padded left by kernel - stride, right to a whole stride."""

    def __init__(self, weights: nn.Module, mode: str = "constant"):
        super().__init__()
        conv = weights.get_submodule("conv")
        assert isinstance(conv, nn.Conv1d)
        self.conv, self.mode = conv, mode

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kernel, stride = self.conv.kernel_size[0], self.conv.stride[0]
        padding = (kernel - stride, -x.shape[-1] % stride)
        y: torch.Tensor = self.conv(F.pad(x, padding, self.mode))
        return y


class ResidualBlock(nn.Module):
    def __init__(self, weights: nn.Module):
        super().__init__()
        self.first = PaddedConv(weights.get_submodule("block.1"))
        self.second = PaddedConv(weights.get_submodule("block.3"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.second(F.elu(self.first(F.elu(x))))
        return x + y


class EncoderBlock(nn.Module):
    """A block with layer norms and a learned scale per channel on both branches."""

    def __init__(self, weights: EncoderBlockWeights, config: CodecEncoderConfig):
        super().__init__()
        attention = weights.self_attn
        self.head_dim = config.head_dim
        self.queries: Layer = attention.q_proj
        self.keys: Layer = attention.k_proj
        self.values: Layer = attention.v_proj
        self.output: Layer = attention.o_proj
        self.up: Layer = weights.mlp["fc1"]
        self.down: Layer = weights.mlp["fc2"]
        self.attention_norm, self.mlp_norm = weights.input_layernorm, weights.post_attention_layernorm
        self.attention_scale = weights.self_attn_layer_scale.scale
        self.mlp_scale = weights.mlp_layer_scale.scale

    def forward(self, x: torch.Tensor, rotation: Rotation, mask: torch.Tensor) -> torch.Tensor:
        """x [1, T, width], mask float [T, T] -> x."""
        y = self.attention_norm(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.head_dim)) for part in (self.queries, self.keys, self.values)
        )
        q, k, v = (part.transpose(1, 2) for part in (rotation(q), rotation(k), v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(-2)
        x = x + self.attention_scale * self.output(attended)
        return x + self.mlp_scale * self.down(F.gelu(self.up(self.mlp_norm(x))))


def nearest(x: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
    """x [1, T, D], entries [N, D] -> index int64 [1, T] of the entry with the least distance."""
    return (entries.square().sum(dim=1) - 2 * x @ entries.T).argmin(dim=-1)


class CodecEncoder(nn.Module):
    """The graph of `speech_encoder`: samples float32 [1, n] -> codes int64 [1, ceil(n / 1920), K].

    `rate` is the number of samples of a frame; `codebooks` that of codes per frame.
    """

    def __init__(self, weights: EncoderWeights, config: CodecEncoderConfig, codebooks: int, max_samples: int):
        super().__init__()
        first, *others = weights.encoder["layers"].children()
        self.input_conv = PaddedConv(first)
        self.blocks = nn.ModuleList(ResidualBlock(part) for part in others if hasattr(part, "block"))
        self.convs = nn.ModuleList(PaddedConv(part) for part in others if not hasattr(part, "block"))
        stack = parts_of(weights.encoder_transformer["layers"].children(), EncoderBlockWeights)
        self.layers = nn.ModuleList(EncoderBlock(part, config) for part in stack)
        steps = math.ceil(max_samples / math.prod(config.upsampling_ratios))
        self.rotary = RotaryTable(config.head_dim, config.rope_theta, steps, halves=True)
        self.downsample = PaddedConv(weights.downsample, "replicate")
        semantic, acoustic = parts_of(weights.quantizer.children(), QuantizerWeights)
        self.semantic_proj: Layer = semantic.input_proj
        self.acoustic_proj: Layer = acoustic.input_proj
        semantic_books = semantic.entries(config.num_semantic_quantizers)
        self.semantic = nn.Buffer(torch.stack(semantic_books), persistent=False)
        books = acoustic.entries(codebooks - config.num_semantic_quantizers)
        self.acoustic = nn.Buffer(torch.stack(books), persistent=False)

    def stages(self, audio: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The values between the stages: SEANet [1, D, 2T], transformer [1, 2T, D], down-sampled [1, D, T],
        codes [1, T, K].
        """
        x = self.input_conv(audio[:, None])
        for block, conv in zip(self.blocks, self.convs, strict=False):
            x = conv(F.elu(block(x)))
        seanet = self.convs[-1](F.elu(x))
        y = seanet.transpose(1, 2)
        steps = torch.arange(y.shape[1])
        rotation = self.rotary(steps[None])
        mask = torch.where(steps[:, None] >= steps[None], 0.0, -torch.inf)
        for layer in self.layers:
            y = layer(y, rotation, mask)
        down = self.downsample(y.transpose(1, 2))
        return seanet, y, down, self.quantize(down)

    def quantize(self, x: torch.Tensor) -> torch.Tensor:
        """x [1, D, T] -> codes [1, T, K]. The acoustic quantiser does not subtract the semantic part."""
        codes = []
        for projection, books in (
            (self.semantic_proj, self.semantic),
            (self.acoustic_proj, self.acoustic),
        ):
            rest = projection(x).transpose(1, 2)
            for entries in books:
                codes.append(nearest(rest, entries))
                rest = rest - entries[codes[-1]]
        return torch.stack(codes, dim=-1)

    def forward(self, audio: torch.Tensor) -> torch.Tensor:
        return self.stages(audio)[-1]
