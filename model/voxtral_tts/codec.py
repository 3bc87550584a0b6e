"""The codec's causal decoder: codes to samples, with explicit state.

A whole utterance and single frames run the same code: a whole utterance is a call at position 0. Convolutions
are written as linears over shifted copies and attention as blocks of one frame, so the cost is linear in the
number of frames and a target needs matrix products only.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from voxport.bundle.constants.voxtral_tts import FIRST_CODE
from voxport.bundle.spec import MASKED_SCORE
from voxport.model.layers.attention import Attended, AttentionWeights
from voxport.model.layers.basic import (
    FeedForward,
    FeedForwardWeights,
    Layer,
    RMSNorm,
    codebook_entries,
    fuse,
)
from voxport.model.layers.block import parts_of
from voxport.model.layers.channels import MISTRAL_PAIRS
from voxport.model.voxtral_tts.config import AudioTokenizerArgs, Options


class ConvolutionWeights(nn.Module):
    """A weight-normed convolution: `conv.parametrizations.weight.original0` and `original1`."""

    def __init__(self, conv: nn.Conv1d | nn.ConvTranspose1d):
        super().__init__()
        self.conv = weight_norm(conv)

    def fused(self) -> torch.Tensor:
        """The weight g · v / |v|, with the norm per first index: [first, second, kernel]."""
        g, v = (self.get_parameter(f"conv.parametrizations.weight.original{index}") for index in range(2))
        weight: torch.Tensor = g * v / v.norm(dim=(1, 2), keepdim=True)
        return weight


class CodecAttentionWeights(AttentionWeights):
    """Self-attention with a norm over the full width of queries and keys."""

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__(args)
        width = args.n_heads * args.head_dim
        self.q_norm, self.k_norm = RMSNorm(width, args.qk_norm_eps), RMSNorm(width, args.qk_norm_eps)


class CodecBlockWeights(nn.Module):
    """A pre-norm block with a learned scale per channel on both branches."""

    channel_pairs = MISTRAL_PAIRS

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__()
        self.attention = CodecAttentionWeights(args)
        self.attention_norm = RMSNorm(args.dim, args.norm_eps)
        self.ffn_norm = RMSNorm(args.dim, args.norm_eps)
        self.feed_forward = FeedForwardWeights(args.dim, args.hidden_dim)
        self.attention_scale = nn.Parameter(torch.empty(args.dim))
        self.ffn_scale = nn.Parameter(torch.empty(args.dim))


class CodecWeights(nn.Module):
    """All `audio_tokenizer.*` tensors: the decoder and its code book."""

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__()
        latent = args.semantic_dim + args.acoustic_dim
        blocks: list[nn.Module] = []
        stages = zip(args.decoder_transformer_lengths, args.decoder_convs_kernels, strict=True)
        for stage, (length, kernel) in enumerate(stages):
            conv = (
                nn.ConvTranspose1d(args.dim, args.dim, kernel, bias=False)
                if stage
                else nn.Conv1d(latent, args.dim, kernel, bias=False)
            )
            blocks.append(ConvolutionWeights(conv))
            layers = nn.ModuleList(CodecBlockWeights(args) for _ in range(length))
            blocks.append(nn.ModuleDict({"layers": layers}))
        self.decoder_blocks = nn.ModuleList(blocks)
        size, kernel = args.pretransform_patch_size, args.patch_proj_kernel_size
        self.output_proj = ConvolutionWeights(nn.Conv1d(args.dim, size, kernel, bias=False))
        book = {
            "embedding_sum": torch.empty(args.semantic_codebook_size, args.semantic_dim),
            "cluster_usage": torch.empty(args.semantic_codebook_size),
        }
        self.quantizer = nn.ModuleDict({"semantic_codebook": nn.ParameterDict(book)})


class CodecAttention(nn.Module):
    """Attention within a `FrameWindow`, with a norm over the full width of queries and keys."""

    def __init__(self, weights: CodecAttentionWeights):
        super().__init__()
        self.wo: Layer = weights.wo
        self.q_norm, self.k_norm = weights.q_norm, weights.k_norm
        self.wqkv = fuse(weights, "wq", "wk", "wv")

    def forward(
        self,
        x: torch.Tensor,
        window: "FrameWindow",
        early: torch.Tensor,
        k_state: torch.Tensor,
        v_state: torch.Tensor,
    ) -> Attended:
        """x [1, T·rate, dim], states [1, back·rate, width] -> attended and the next states, same shapes."""
        q, k, v = self.wqkv(x).chunk(3, dim=-1)  # [1, T·rate, width]
        q, k = self.q_norm(q), self.k_norm(k)
        q = q.reshape(-1, window.rate, window.n_heads, window.head_dim)
        k, v = torch.cat((k_state, k), dim=1), torch.cat((v_state, v), dim=1)
        keys, values = window.blocks(k, q.shape[0]), window.blocks(v, q.shape[0])
        # Written out: torch's fused attention decomposes into strides that not every lowering accepts.
        scores = q.transpose(1, 2) @ keys.transpose(2, 3) * window.head_dim**-0.5 + window.bias + early
        out = scores.softmax(dim=-1) @ values  # scores: [T, H, rate, (back+1)·rate]
        attended = self.wo(out.transpose(1, 2).reshape(1, q.shape[0] * window.rate, -1))
        return attended, _tail(k, window.back * window.rate), _tail(v, window.back * window.rate)


class CodecBlock(nn.Module):
    """Pre-norm block with a learned scale per channel on both branches."""

    def __init__(self, weights: CodecBlockWeights):
        super().__init__()
        self.attention = CodecAttention(weights.attention)
        self.attention_norm, self.ffn_norm = weights.attention_norm, weights.ffn_norm
        self.feed_forward = FeedForward(weights.feed_forward)
        self.attention_scale, self.ffn_scale = weights.attention_scale, weights.ffn_scale

    def forward(
        self,
        x: torch.Tensor,
        window: "FrameWindow",
        early: torch.Tensor,
        k_state: torch.Tensor,
        v_state: torch.Tensor,
    ) -> Attended:
        """x [1, T·rate, dim], states [1, back·rate, width] -> the same shapes.

        `early`: see `FrameWindow.early`.
        """
        attended, k_state, v_state = self.attention(self.attention_norm(x), window, early, k_state, v_state)
        x = x + self.attention_scale * attended
        return x + self.ffn_scale * self.feed_forward(self.ffn_norm(x)), k_state, v_state


class CausalConv(nn.Module):
    """Stride-1 convolution as one linear over `kernel` shifted copies."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        out, channels, self.kernel = weight.shape
        rows = weight.permute(0, 2, 1).reshape(out, self.kernel * channels)
        self.weight = nn.Buffer(rows, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x with its left context [1, kernel - 1 + S, in] -> [1, S, out]."""
        length = x.shape[1] - (self.kernel - 1)
        return F.linear(torch.cat([x.narrow(1, k, length) for k in range(self.kernel)], dim=-1), self.weight)


class Upsampler(nn.Module):
    """Right-trimmed transposed convolution with kernel 2·stride, in polyphase form.

    y[s·m + j] = W_j x[m] + W_{j+s} x[m-1]
    """

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        channels, out, kernel = weight.shape
        self.stride = kernel // 2
        phases = weight.permute(2, 1, 0)  # [k, out, in]
        both = torch.cat((phases[: self.stride], phases[self.stride :]), dim=-1)  # [stride, out, 2·in]
        self.weight = nn.Buffer(both.reshape(self.stride * out, 2 * channels), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x with the row before its first [1, 1 + S, in] -> [1, stride·S, out]."""
        y = F.linear(torch.cat((x[:, 1:], x[:, :-1]), dim=-1), self.weight)
        return y.reshape(1, -1, y.shape[-1] // self.stride)


class FrameWindow(nn.Module):
    """Causal sliding-window attention with ALiBi, in blocks of one frame of `rate` positions.

    A query attends to itself and `window` positions back: to its own frame and the `back` frames before it.
    """

    def __init__(self, args: AudioTokenizerArgs, stage: int, alibi_slopes: str):
        super().__init__()
        window, rate, back = args.windows[stage], args.rates[stage], args.context_frames[stage]
        self.rate, self.back = rate, back
        self.n_heads, self.head_dim = args.n_heads, args.head_dim
        first = 0 if alibi_slopes == "mistral" else 1
        ratio = 2.0 ** (-8.0 / args.n_heads)
        slopes = ratio ** torch.arange(first, first + args.n_heads, dtype=torch.float32)
        query, key = torch.arange(rate)[:, None] + back * rate, torch.arange((back + 1) * rate)[None, :]
        distance = key - query
        visible = (distance <= 0) & (distance >= -window)
        bias = torch.where(visible, slopes[:, None, None] * distance, MASKED_SCORE)
        self.bias = nn.Buffer(bias, persistent=False)  # [H, rate, (back+1)·rate]

    def early(self, position: torch.Tensor, frames: int) -> torch.Tensor:
        """Mask of keys in frames before the first: [T, 1, 1, (back+1)·rate]."""
        frame = position + torch.arange(frames)[:, None] + torch.arange(-self.back, 1)[None, :]  # [T, back+1]
        return torch.where(frame < 0, MASKED_SCORE, 0.0).repeat_interleave(self.rate, dim=1)[:, None, None, :]

    def blocks(self, x: torch.Tensor, frames: int) -> torch.Tensor:
        """For each frame the rows of itself and of the `back` frames before it: [T, H, (back+1)·rate, D]."""
        x = x.reshape(-1, self.rate, self.n_heads, self.head_dim)
        shifted = [x.narrow(0, back, frames) for back in range(self.back + 1)]
        return torch.cat(shifted, dim=1).transpose(1, 2)


def _tail(x: torch.Tensor, length: int) -> torch.Tensor:
    return x.narrow(1, x.shape[1] - length, length)


class Codec(nn.Module):
    """The graph of `codec` and `codec_step`.

    codes int64 [1, T, K], position int64 [1] (frames decoded before), states
    -> audio [1, T · samples_per_frame], states.
    At position 0 the states have no effect if they are finite: replicate and
    reflect padding replace them, and the windows' keys are masked. So a call at position 0 with all frames
    decodes a whole utterance.
    """

    def __init__(self, weights: CodecWeights, args: AudioTokenizerArgs, options: Options):
        super().__init__()
        self.args = args
        book = weights.quantizer["semantic_codebook"]
        codebook = codebook_entries(book.get_parameter("embedding_sum"), book.get_parameter("cluster_usage"))
        self.codebook = nn.Buffer(codebook, persistent=False)
        first, *others = parts_of(weights.decoder_blocks, ConvolutionWeights)
        stages = [parts_of(stage.modules(), CodecBlockWeights) for stage in weights.decoder_blocks]
        blocks = [nn.ModuleList(map(CodecBlock, stage)) for stage in stages if stage]
        self.stages = nn.ModuleList(nn.ModuleDict({"layers": layers}) for layers in blocks)
        self.input_conv = CausalConv(first.fused())
        self.upsamplers = nn.ModuleList(Upsampler(part.fused()) for part in others)
        self.windows = nn.ModuleList(
            FrameWindow(args, stage, options.alibi_slopes) for stage in range(len(blocks))
        )
        self.output_conv = CausalConv(weights.output_proj.fused())

    def dequantize(self, codes: torch.Tensor) -> torch.Tensor:
        """codes [1, T, K] with specials counted -> latent [1, T, semantic_dim + acoustic_dim]."""
        levels = codes - FIRST_CODE
        semantic = self.codebook[levels[:, :, 0].clamp(0, self.args.semantic_codebook_size - 1)]
        top = self.args.acoustic_codebook_size - 1
        # (2c) / 20 - 1 is exact where c · 0.1 - 1 is not
        acoustic = (2 * levels[:, :, 1:].clamp(0, top)).float() / top - 1
        return torch.cat((semantic, acoustic), dim=-1)

    def forward(
        self, codes: torch.Tensor, position: torch.Tensor, *states: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        left: list[torch.Tensor] = list(states)
        written: list[torch.Tensor] = []
        first = position == 0

        def with_context(padding: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            """x behind its carried rows, or behind `padding` at position 0."""
            whole = torch.cat((torch.where(first, padding, left.pop(0)), x), dim=1)
            written.append(_tail(whole, padding.shape[1]))
            return whole

        latent = self.dequantize(codes)
        x = self.input_conv(with_context(latent[:, :1].expand(-1, self.input_conv.kernel - 1, -1), latent))
        windows = parts_of(self.windows, FrameWindow)
        for stage, (layers, window) in enumerate(zip(self.stages, windows, strict=True)):
            if stage:
                x = self.upsamplers[stage - 1](with_context(torch.zeros_like(x[:, :1]), x))
            early = window.early(position, codes.shape[1])
            for block in parts_of(layers.modules(), CodecBlock):
                x, k_state, v_state = block(x, window, early, left.pop(0), left.pop(0))
                written += [k_state, v_state]
        reflected = x[:, 1 : self.output_conv.kernel].flip(1)  # positions 6 … 1 of the first frame
        audio: torch.Tensor = self.output_conv(with_context(reflected, x)).reshape(1, -1)
        return audio, *written
