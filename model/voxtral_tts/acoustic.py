"""The flow-matching head: 36 acoustic values of a frame from noise, in a fixed number of Euler steps."""

from __future__ import annotations

import math

import torch
from torch import nn

from model.layers.attention import Attention
from model.layers.feed_forward import FeedForward
from model.layers.norm import RMSNorm
from model.voxtral_tts.config import AcousticTransformerArgs, VoxtralTTSConfig

CFG_ALPHA = 1.2  # classifier-free guidance; absent from params.json, fixed in the makers' code


class BidirectionalBlock(nn.Module):
    """A backbone block without positions and without a mask: three tokens see each other."""

    def __init__(self, args: AcousticTransformerArgs, is_last: bool):
        super().__init__()
        self.attention = Attention(
            args.dim, args.n_heads, args.n_kv_heads, args.head_dim, queries_apart=is_last
        )
        self.attention_norm = RMSNorm(args.dim, args.norm_eps)
        self.feed_forward = FeedForward(args.dim, args.hidden_dim)
        self.ffn_norm = RMSNorm(args.dim, args.norm_eps)

    def project(
        self, x: torch.Tensor, queries: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [B, S, dim] -> q of the first `queries` rows (all where None), k, v [B, S, heads, D]."""
        return self.attention.project(self.attention_norm(x), queries)

    def forward(self, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """x [2B, Q, dim], its queries, keys and values of all tokens -> [2B, Q, dim]."""
        x = x + self.attention.wo(self.attention.kernel.among(q, k, v).flatten(-2))
        return x + self.feed_forward(self.ffn_norm(x))


class AcousticTransformer(nn.Module):
    """All `acoustic_transformer.*` tensors of a checkpoint."""

    def __init__(self, config: VoxtralTTSConfig):
        super().__init__()
        args = config.acoustic
        self.args = args
        self.input_projection = nn.Linear(config.audio.n_acoustic_codebook, args.dim, bias=False)
        self.time_projection = nn.Linear(args.dim, args.dim, bias=False)
        self.llm_projection = nn.Linear(args.input_dim, args.dim, bias=False)
        self.semantic_codebook_output = nn.Linear(config.dim, config.semantic_rows, bias=False)
        self.acoustic_codebook_output = nn.Linear(args.dim, config.audio.n_acoustic_codebook, bias=False)
        self.norm = RMSNorm(args.dim, args.norm_eps)
        self.layers = nn.ModuleList(
            BidirectionalBlock(args, index == args.n_layers - 1) for index in range(args.n_layers)
        )

    def time_tokens(self) -> torch.Tensor:
        """time_projection(concat(cos(t·w), sin(t·w))) at t = i/steps, `[steps, dim]`: constants of a checkpoint."""
        half = self.args.dim // 2
        frequency = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
        t = torch.linspace(0, 1, self.args.n_decoding_steps + 1)[:-1, None]
        return self.time_projection(torch.cat(((t * frequency).cos(), (t * frequency).sin()), dim=-1))


class AcousticStepGraph(nn.Module):
    """One Euler step, guided and unguided velocity in one batch of 2 for each stream.

    x [B, A], step int64 [B] (0 … steps - 1), condition [B, dim] -> x after the step [B, A], velocity [B, 2, A].
    The first of two velocities is conditional, the second unconditional (a zero condition).

    Nothing is computed that is known: in the first layer the state is the same in both rows, the time token is one of a few
    constants, and a zero condition has zero queries, keys and values (no bias anywhere); of the last layer only the state is read.
    """

    time_tokens: torch.Tensor
    time_q: torch.Tensor
    time_k: torch.Tensor
    time_v: torch.Tensor

    def __init__(self, head: AcousticTransformer):
        super().__init__()
        self.input_projection, self.output = head.input_projection, head.acoustic_codebook_output
        self.layers, self.norm = head.layers, head.norm
        self.dt = 1.0 / head.args.n_decoding_steps
        times = head.time_tokens()
        self.register_buffer("time_tokens", times, persistent=False)
        described = self.norm.weight.is_meta  # shapes only
        for name, part in zip(
            ("time_q", "time_k", "time_v"),
            [times[None]] * 3 if described else self.layers[0].project(times[None]),
            strict=True,
        ):
            self.register_buffer(
                name, part[0].clone(memory_format=torch.contiguous_format), persistent=False
            )  # [steps, heads, D], each a tensor of its own

    def forward(
        self, x: torch.Tensor, step: torch.Tensor, condition: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.input_projection(x)  # [B, dim]
        tokens = torch.stack((state, self.time_tokens[step], condition), dim=1)  # [B, 3, dim]
        without = torch.cat((tokens[:, :2], torch.zeros_like(tokens[:, 2:])), dim=1)
        known = zip(
            self.layers[0].project(tokens[:, ::2]), (self.time_q, self.time_k, self.time_v), strict=True
        )
        projected = [_both(part[:, :1], time[step][:, None], part[:, 1:]) for part, time in known]
        tokens = torch.cat((tokens, without), dim=0)  # [2B, 3, dim]
        for index, block in enumerate(self.layers):
            is_last = block is self.layers[-1]
            q, k, v = projected if index == 0 else block.project(tokens, 1 if is_last else None)
            tokens = block(
                tokens[:, :1] if is_last else tokens, q[:, :1] if is_last and index == 0 else q, k, v
            )
        conditional, unconditional = (
            self.output(self.norm(tokens[:, 0])).unflatten(0, (2, -1)).unbind()
        )  # [B, A] each
        guided = CFG_ALPHA * conditional + (1 - CFG_ALPHA) * unconditional
        return x + guided * self.dt, torch.stack((conditional, unconditional), dim=1)


def _both(state: torch.Tensor, time: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
    """Three tokens [B, 1, heads, D] -> [2B, 3, heads, D]: with the condition, and with none."""
    shared = torch.cat((state, time), dim=1)
    return torch.cat(
        (torch.cat((shared, condition), dim=1), torch.cat((shared, torch.zeros_like(condition)), dim=1)),
        dim=0,
    )
