"""The encoder of the speech tokenizer: samples to codes, as in Mimi.

Attention sees everything before, whatever `sliding_window` says: so the official package runs it.
"""

import torch
import torch.nn.functional as F
from torch import nn

from voxport.model.layers.basic import Layer, codebook_entries, module_dict
from voxport.model.layers.block import parts_of
from voxport.model.layers.rope import RotaryTable, Rotation
from voxport.model.qwen3_tts.codec.weights import ScaleWeights
from voxport.model.qwen3_tts.config import CodecEncoderConfig


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
        self.layers = nn.ModuleList(module_dict(codebook=table) for table in tables)

    def entries(self) -> list[torch.Tensor]:
        """Entries [size, codebook_dim] of each table."""
        books = [layer.get_submodule("codebook") for layer in self.layers]
        return [
            codebook_entries(book.get_parameter("embed_sum"), book.get_parameter("cluster_usage"))
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
        self.mlp = module_dict(
            fc1=nn.Linear(width, config.intermediate_size, bias=False),
            fc2=nn.Linear(config.intermediate_size, width, bias=False),
        )
        self.input_layernorm = nn.LayerNorm(width, config.norm_eps)
        self.post_attention_layernorm = nn.LayerNorm(width, config.norm_eps)
        self.self_attn_layer_scale, self.mlp_layer_scale = ScaleWeights(width), ScaleWeights(width)


class EncoderWeights(nn.Module):
    """The `encoder.*` tensors that encoding to `codebooks` codes a frame needs.

    Names of layers are numbers with gaps, as published.
    """

    def __init__(self, config: CodecEncoderConfig, codebooks: int):
        super().__init__()
        width, layers = (
            config.num_filters,
            {"0": module_dict(conv=nn.Conv1d(1, config.num_filters, config.kernel_size))},
        )
        for rate in reversed(config.upsampling_ratios):
            inner = width // config.compress
            first, second = nn.Conv1d(width, inner, config.residual_kernel_size), nn.Conv1d(inner, width, 1)
            number = 3 * (len(layers) // 2) + 1
            layers[str(number)] = module_dict(
                block=module_dict(**{"1": module_dict(conv=first), "3": module_dict(conv=second)})
            )
            layers[str(number + 2)] = module_dict(conv=nn.Conv1d(width, 2 * width, 2 * rate, rate))
            width *= 2
        last = 3 * len(config.upsampling_ratios) + 2
        layers[str(last)] = module_dict(conv=nn.Conv1d(width, config.hidden_size, config.last_kernel_size))
        self.encoder = module_dict(layers=module_dict(**layers))
        blocks = (EncoderBlockWeights(config) for _ in range(config.num_hidden_layers))
        self.encoder_transformer = module_dict(layers=nn.ModuleList(blocks))
        self.downsample = module_dict(
            conv=nn.Conv1d(config.hidden_size, config.hidden_size, 4, 2, bias=False)
        )
        self.quantizer = module_dict(
            semantic_residual_vector_quantizer=QuantizerWeights(config, config.num_semantic_quantizers),
            acoustic_residual_vector_quantizer=QuantizerWeights(
                config, codebooks - config.num_semantic_quantizers
            ),
        )


class CausalConv(nn.Module):
    """x [1, C, stride * T] -> [1, C', T], with kernel - stride zeros before it."""

    def __init__(self, weights: nn.Module):
        super().__init__()
        conv = weights.get_submodule("conv")
        assert isinstance(conv, nn.Conv1d)
        self.conv, self.context = conv, conv.kernel_size[0] - conv.stride[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(F.pad(x, (self.context, 0)))
        return y


def cut(x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    """x [1, C, T] with zeros from column `length` int64 [1] on, as a convolution pads a shorter input."""
    return torch.where(torch.arange(x.shape[-1]) >= length, 0.0, x)


class ResidualBlock(nn.Module):
    def __init__(self, weights: nn.Module):
        super().__init__()
        self.first = CausalConv(weights.get_submodule("block.1"))
        self.second = CausalConv(weights.get_submodule("block.3"))

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

    def forward(self, x: torch.Tensor, rotation: Rotation, visible: torch.Tensor) -> torch.Tensor:
        """x [1, T, width], visible bool [T, T] (keys that each query sees) -> x."""
        y = self.attention_norm(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.head_dim)) for part in (self.queries, self.keys, self.values)
        )
        q, k, v = (part.transpose(1, 2) for part in (rotation(q), rotation(k), v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=visible).transpose(1, 2).flatten(-2)
        x = x + self.attention_scale * self.output(attended)
        return x + self.mlp_scale * self.down(F.gelu(self.up(self.mlp_norm(x))))


def nearest(x: torch.Tensor, entries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """x [1, T, D], entries [N, D] -> index int64 [1, T] of the nearest entry, and the margin [1, T] to the
    second nearest.
    """
    squares = x.square().sum(dim=-1, keepdim=True) - 2 * x @ entries.T + entries.square().sum(dim=1)
    index = squares.argmin(dim=-1)
    others = torch.where(torch.arange(len(entries)) == index[..., None], torch.inf, squares)
    first, second = (each.amin(dim=-1).clamp_min(0.0).sqrt() for each in (squares, others))
    return index, second - first


class CodecEncoder(nn.Module):
    """The graph of `speech_encoder`: audio float32 [1, T, samples of a frame], length int64 [1] -> codes
    int64 [1, T, K], margins [1, T, K], latents [1, T, D] from which codes are chosen.

    A margin is by how much the second nearest entry is farther away than the chosen one.
    `length` counts the samples of the recording, which ends in the last frame. What is behind it has no
    effect. The graph takes up to `max_frames` frames.
    """

    def __init__(self, weights: EncoderWeights, config: CodecEncoderConfig, max_frames: int):
        super().__init__()
        first, *others = weights.encoder["layers"].children()
        self.input_conv = CausalConv(first)
        self.blocks = nn.ModuleList(ResidualBlock(part) for part in others if hasattr(part, "block"))
        self.convs = nn.ModuleList(CausalConv(part) for part in others if not hasattr(part, "block"))
        self.strides = tuple(reversed(config.upsampling_ratios))
        stack = parts_of(weights.encoder_transformer["layers"].children(), EncoderBlockWeights)
        self.layers = nn.ModuleList(EncoderBlock(part, config) for part in stack)
        self.rotary = RotaryTable(config.head_dim, config.rope_theta, 2 * max_frames, interleaved=False)
        downsample = weights.downsample["conv"]
        assert isinstance(downsample, nn.Conv1d)
        self.downsample = downsample
        semantic, acoustic = parts_of(weights.quantizer.children(), QuantizerWeights)
        self.semantic_proj: Layer = semantic.input_proj
        self.acoustic_proj: Layer = acoustic.input_proj
        self.semantic = nn.Buffer(torch.stack(semantic.entries()), persistent=False)
        self.acoustic = nn.Buffer(torch.stack(acoustic.entries()), persistent=False)

    def stages(self, audio: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The values between the stages: SEANet [1, D, 2T], transformer [1, 2T, D], down-sampled [1, D, T],
        codes [1, T, K], margins [1, T, K].
        """
        x = self.input_conv(audio.flatten(1)[:, None])
        *convs, last = self.convs
        for block, conv, stride in zip(self.blocks, convs, self.strides, strict=True):
            x = conv(cut(F.elu(block(x)), length))
            length = (length + stride - 1) // stride
        seanet = last(F.elu(x))
        y = seanet.transpose(1, 2)
        steps = torch.arange(y.shape[1])
        rotation = self.rotary(steps[None])
        visible = steps[:, None] >= steps[None]
        for layer in self.layers:
            y = layer(y, rotation, visible)
        down = self.downsample(self._extended(y, length).transpose(1, 2))
        return seanet, y, down, *self.quantize(down)

    def _extended(self, x: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        """x [1, T, D] with its first row repeated before it, and row `length` - 1 behind it."""
        context = self.downsample.kernel_size[0] - self.downsample.stride[0]
        rows = torch.arange(x.shape[1] + context) - context
        return x[:, torch.minimum(rows, length - 1).maximum(torch.zeros_like(rows))]

    def quantize(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x [1, D, T] -> codes, margins [1, T, K]. The acoustic quantiser does not subtract the semantic
        part.
        """
        codes, margins = [], []
        for projection, books in (
            (self.semantic_proj, self.semantic),
            (self.acoustic_proj, self.acoustic),
        ):
            rest = projection(x).transpose(1, 2)
            for entries in books:
                index, margin = nearest(rest, entries)
                codes.append(index)
                margins.append(margin)
                rest = rest - entries[index]
        return torch.stack(codes, dim=-1), torch.stack(margins, dim=-1)

    def forward(self, audio: torch.Tensor, length: torch.Tensor) -> tuple[torch.Tensor, ...]:
        *_, down, codes, margins = self.stages(audio, length)
        return codes, margins, down.transpose(1, 2)
