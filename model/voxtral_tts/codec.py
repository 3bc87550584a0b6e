"""The codec's decoder: codes to samples, causal, with all it carries from call to call as explicit state.

Whole utterances and single frames run the same code: a whole utterance is a call at position 0 with empty states.
Convolutions are spelled as products over shifted copies and attention as blocks of one frame, so that cost is linear
in the number of frames and every target sees matrix products only.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from bundle.spec import StateSpec
from model.layers.attention import join_products
from model.layers.feed_forward import FeedForward
from model.layers.linear import joined
from model.layers.norm import RMSNorm
from model.voxtral_tts.config import FIRST_LEVEL, AudioTokenizerArgs, Switches

MASKED = -1e4  # finite: a half-precision softmax stays defined where a whole row is masked
USAGE_FLOOR = 1e-5  # the makers' floor of cluster_usage; matters for dead entries only


class WeightNorm(nn.Module):
    """A weight-normed convolution's parameters under the names that torch's parametrisation gives them."""

    def __init__(self, first: int, second: int, kernel: int):
        super().__init__()
        parts = nn.ParameterDict(
            {"original0": torch.empty(first, 1, 1), "original1": torch.empty(first, second, kernel)}
        )
        self.parametrizations = nn.ModuleDict({"weight": parts})

    def folded(self) -> torch.Tensor:
        """g · v / |v|, the norm taken per first index: `[first, second, kernel]`."""
        g, v = self.parametrizations["weight"]["original0"], self.parametrizations["weight"]["original1"]
        return g * v / v.norm(dim=(1, 2), keepdim=True)


class ConvBlock(nn.Module):
    """Holder that gives a convolution its published name, `….conv`."""

    def __init__(self, first: int, second: int, kernel: int):
        super().__init__()
        self.conv = WeightNorm(first, second, kernel)


class CodecAttention(nn.Module):
    """Projections with a norm over the full width of queries and keys, before the split into heads."""

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__()
        width = args.n_heads * args.head_dim
        self.n_heads, self.head_dim = args.n_heads, args.head_dim
        self.wq, self.wk, self.wv = (nn.Linear(args.dim, width, bias=False) for _ in range(3))
        self.wo = nn.Linear(width, args.dim, bias=False)
        self.q_norm, self.k_norm = RMSNorm(width, args.qk_norm_eps), RMSNorm(width, args.qk_norm_eps)

    def join(self) -> None:
        """Once the weights are in place: queries, keys and values become one product."""
        self.wqkv = joined([self.wq, self.wk, self.wv])
        del self.wq, self.wk, self.wv

    def project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [1, S, dim] -> q, k, v [1, S, width]."""
        q, k, v = self.wqkv(x).chunk(3, dim=-1)
        return self.q_norm(q), self.k_norm(k), v


class CodecBlock(nn.Module):
    """Pre-norm block with a learned scale per channel on both branches."""

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__()
        self.attention = CodecAttention(args)
        self.attention_norm, self.ffn_norm = (
            RMSNorm(args.dim, args.norm_eps),
            RMSNorm(args.dim, args.norm_eps),
        )
        self.feed_forward = FeedForward(args.dim, args.hidden_dim)
        self.attention_scale, self.ffn_scale = (
            nn.Parameter(torch.empty(args.dim)),
            nn.Parameter(torch.empty(args.dim)),
        )

    def forward(self, x, window: Window, early, k_state, v_state):
        attended, k_state, v_state = window.attend(
            self.attention, self.attention_norm(x), early, k_state, v_state
        )
        x = x + self.attention_scale * attended
        return x + self.ffn_scale * self.feed_forward(self.ffn_norm(x)), k_state, v_state


class CodecStage(nn.Module):
    def __init__(self, args: AudioTokenizerArgs, length: int):
        super().__init__()
        self.layers = nn.ModuleList(CodecBlock(args) for _ in range(length))


class AudioTokenizer(nn.Module):
    """All `audio_tokenizer.*` tensors of a checkpoint: the decoder and its code book."""

    def __init__(self, args: AudioTokenizerArgs):
        super().__init__()
        latent = args.semantic_dim + args.acoustic_dim
        blocks: list[nn.Module] = []
        for stage, (length, kernel) in enumerate(
            zip(args.decoder_transformer_lengths, args.decoder_convs_kernels, strict=True)
        ):
            # Conv1d is [out, in, k]; ConvTranspose1d is [in, out, k].
            blocks.append(ConvBlock(args.dim, args.dim if stage else latent, kernel))
            blocks.append(CodecStage(args, length))
        self.decoder_blocks = nn.ModuleList(blocks)
        self.output_proj = ConvBlock(args.pretransform_patch_size, args.dim, args.patch_proj_kernel_size)
        book = nn.ParameterDict(
            {
                "embedding_sum": torch.empty(args.semantic_codebook_size, args.semantic_dim),
                "cluster_usage": torch.empty(args.semantic_codebook_size),
            }
        )
        self.quantizer = nn.ModuleDict({"semantic_codebook": book})


class CausalConv(nn.Module):
    """Stride-1 convolution as one product over `kernel` shifted copies; x arrives with its left context in front."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        out, channels, self.kernel = weight.shape
        self.register_buffer(
            "weight", weight.permute(0, 2, 1).reshape(out, self.kernel * channels), persistent=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[1, kernel - 1 + S, in] -> [1, S, out]."""
        length = x.shape[1] - (self.kernel - 1)
        return F.linear(torch.cat([x.narrow(1, k, length) for k in range(self.kernel)], dim=-1), self.weight)


class Upsampler(nn.Module):
    """Transposed convolution with kernel 2·stride, right-trimmed, in polyphase form: y[s·m + j] = W_j x[m] + W_{j+s} x[m-1]."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        channels, out, kernel = weight.shape
        self.stride = kernel // 2
        phases = weight.permute(2, 1, 0)  # [k, out, in]
        both = torch.cat((phases[: self.stride], phases[self.stride :]), dim=-1)  # [stride, out, 2·in]
        self.register_buffer("weight", both.reshape(self.stride * out, 2 * channels), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[1, 1 + S, in], the row before the first in front -> [1, stride·S, out]."""
        y = F.linear(torch.cat((x[:, 1:], x[:, :-1]), dim=-1), self.weight)
        return y.reshape(1, -1, y.shape[-1] // self.stride)


class Window(nn.Module):
    """Causal sliding-window attention with ALiBi, a frame of `rate` positions at a time.

    A query attends to itself and `window` positions back, which lie in its own frame and the `back` frames before it.
    """

    def __init__(self, args: AudioTokenizerArgs, rate: int, window: int, alibi_slopes: str):
        super().__init__()
        self.rate, self.back = rate, math.ceil(window / rate)
        self.n_heads, self.head_dim = args.n_heads, args.head_dim
        first = 0 if alibi_slopes == "mistral" else 1
        ratio = 2.0 ** (-8.0 / args.n_heads)
        slopes = ratio ** torch.arange(first, first + args.n_heads, dtype=torch.float32)
        distance = torch.arange((self.back + 1) * rate)[None, :] - (
            torch.arange(rate)[:, None] + self.back * rate
        )  # key - query
        seen = (distance <= 0) & (distance >= -window)
        bias = torch.where(seen, slopes[:, None, None] * distance, MASKED)
        self.register_buffer("bias", bias, persistent=False)  # [H, rate, (back+1)·rate]

    def early(self, position: torch.Tensor, frames: int) -> torch.Tensor:
        """Masks keys of frames before the first: [T, 1, 1, (back+1)·rate]."""
        frame = position + torch.arange(frames)[:, None] + torch.arange(-self.back, 1)[None, :]  # [T, back+1]
        return torch.where(frame < 0, MASKED, 0.0).repeat_interleave(self.rate, dim=1)[:, None, None, :]

    def attend(self, attention: CodecAttention, x, early, k_state, v_state):
        """x [1, T·rate, dim], states [1, back·rate, width] -> attended [1, T·rate, dim] and the states after it."""
        q, k, v = attention.project(x)
        q = q.reshape(-1, self.rate, self.n_heads, self.head_dim)
        frames = q.shape[0]
        k, v = torch.cat((k_state, k), dim=1), torch.cat((v_state, v), dim=1)
        keys, values = (
            torch.cat([part.narrow(0, back, frames) for back in range(self.back + 1)], dim=1).transpose(
                1, 2
            )  # [T, H, (back+1)·rate, D]
            for part in (t.reshape(-1, self.rate, self.n_heads, self.head_dim) for t in (k, v))
        )
        # spelled out: torch's fused attention decomposes into strides that not every lowering accepts
        scores = (
            q.transpose(1, 2) @ keys.transpose(2, 3) * self.head_dim**-0.5 + self.bias + early
        )  # [T, H, rate, (back+1)·rate]
        out = scores.softmax(dim=-1) @ values
        attended = attention.wo(out.transpose(1, 2).reshape(1, frames * self.rate, -1))
        return attended, _tail(k, self.back * self.rate), _tail(v, self.back * self.rate)


def _tail(x: torch.Tensor, length: int) -> torch.Tensor:
    return x.narrow(1, x.shape[1] - length, length)


class CodecGraph(nn.Module):
    """codes int64 [1, T, K], position int64 [1] (frames decoded so far), states -> audio [1, T · samples_per_frame], states.

    At position 0 the states have no effect, if they are finite: replicate and reflect padding stand in for them, and the
    windows' keys are masked. So a call at position 0 with all frames decodes a whole utterance.
    """

    def __init__(self, tokenizer: AudioTokenizer, args: AudioTokenizerArgs, switches: Switches):
        super().__init__()
        join_products(tokenizer)
        self.args = args
        book = tokenizer.quantizer["semantic_codebook"]
        self.register_buffer(
            "codebook",
            book["embedding_sum"] / book["cluster_usage"].clamp_min(USAGE_FLOOR)[:, None],
            persistent=False,
        )
        convs = [block.conv.folded() for block in tokenizer.decoder_blocks if isinstance(block, ConvBlock)]
        self.stages = nn.ModuleList(
            block for block in tokenizer.decoder_blocks if isinstance(block, CodecStage)
        )
        self.input_conv = CausalConv(convs[0])
        self.upsamplers = nn.ModuleList(Upsampler(weight) for weight in convs[1:])
        self.windows = nn.ModuleList(
            Window(args, r, w, switches.alibi_slopes) for r, w in zip(args.rates, args.windows, strict=True)
        )
        self.output_conv = CausalConv(tokenizer.output_proj.conv.folded())

    def state_specs(self) -> tuple[StateSpec, ...]:
        """What is carried, in the order that `forward` takes it."""
        args, specs = (
            self.args,
            [("latent", self.input_conv.kernel - 1, self.args.semantic_dim + self.args.acoustic_dim)],
        )
        for stage, window in enumerate(self.windows):
            if stage:
                specs.append((f"upsampler_{stage}", 1, args.dim))
            for layer in range(args.decoder_transformer_lengths[stage]):
                specs += [
                    (f"{kind}_{stage}_{layer}", window.back * window.rate, args.n_heads * args.head_dim)
                    for kind in "kv"
                ]
        specs.append(("output", self.output_conv.kernel - 1, args.dim))
        return tuple(StateSpec(name, "float32", (1, length, width)) for name, length, width in specs)

    def dequantize(self, codes: torch.Tensor) -> torch.Tensor:
        """codes [1, T, K] with specials counted -> latent [1, T, semantic_dim + acoustic_dim]."""
        levels = codes - FIRST_LEVEL
        semantic = self.codebook[levels[:, :, 0].clamp(0, self.args.semantic_codebook_size - 1)]
        top = self.args.acoustic_codebook_size - 1
        acoustic = (
            2 * levels[:, :, 1:].clamp(0, top)
        ).float() / top - 1  # (2c)/20 - 1: exact where c·0.1 - 1 is not
        return torch.cat((semantic, acoustic), dim=-1)

    def forward(self, codes: torch.Tensor, position: torch.Tensor, *states: torch.Tensor):
        left, written = list(states), []
        first = position == 0
        frames = codes.shape[1]

        def context(padding: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            joined = torch.cat((torch.where(first, padding, left.pop(0)), x), dim=1)
            written.append(_tail(joined, padding.shape[1]))
            return joined

        latent = self.dequantize(codes)
        x = self.input_conv(context(latent[:, :1].expand(-1, self.input_conv.kernel - 1, -1), latent))
        for stage, (layers, window) in enumerate(zip(self.stages, self.windows, strict=True)):
            if stage:
                x = self.upsamplers[stage - 1](context(torch.zeros_like(x[:, :1]), x))
            early = window.early(position, frames)
            for block in layers.layers:
                x, k_state, v_state = block(x, window, early, left.pop(0), left.pop(0))
                written += [k_state, v_state]
        reflected = x[:, 1 : self.output_conv.kernel].flip(1)  # positions 6 … 1 of the first frame's own
        return self.output_conv(context(reflected, x)).reshape(1, -1), *written
