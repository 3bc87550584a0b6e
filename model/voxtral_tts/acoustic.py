"""The flow-matching head: 36 acoustic values of a frame from noise, in a fixed number of Euler steps."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from model.layers.attention import Attention
from model.layers.feed_forward import FeedForward
from model.layers.norm import RMSNorm
from model.voxtral_tts.config import AcousticTransformerArgs, VoxtralTTSConfig

CFG_ALPHA = 1.2  # classifier-free guidance; absent from params.json, fixed in the makers' code


class BidirectionalBlock(nn.Module):
    """A backbone block without positions and without a mask: three tokens see each other."""

    def __init__(self, args: AcousticTransformerArgs):
        super().__init__()
        self.attention = Attention(args.dim, args.n_heads, args.n_kv_heads, args.head_dim)
        self.attention_norm = RMSNorm(args.dim, args.norm_eps)
        self.feed_forward = FeedForward(args.dim, args.hidden_dim)
        self.ffn_norm = RMSNorm(args.dim, args.norm_eps)
        self.queries_per_key = args.n_heads // args.n_kv_heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.transpose(1, 2) for part in self.attention.project(self.attention_norm(x)))  # [2, H, 3, D]
        k, v = k.repeat_interleave(self.queries_per_key, dim=1), v.repeat_interleave(self.queries_per_key, dim=1)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.attention.wo(attended.transpose(1, 2).flatten(-2))
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
        self.layers = nn.ModuleList(BidirectionalBlock(args) for _ in range(args.n_layers))

    def time_tokens(self) -> torch.Tensor:
        """time_projection(concat(cos(t·w), sin(t·w))) at t = i/steps, `[steps, dim]`: constants of a checkpoint."""
        half = self.args.dim // 2
        frequency = torch.exp(-math.log(10000.0) * torch.arange(half, dtype=torch.float32) / half)
        t = torch.linspace(0, 1, self.args.n_decoding_steps + 1)[:-1, None]
        return self.time_projection(torch.cat(((t * frequency).cos(), (t * frequency).sin()), dim=-1))


class AcousticStepGraph(nn.Module):
    """One Euler step, guided and unguided velocity in one batch of 2.

    x [1, A], step int64 [1] (0 … steps - 1), condition [1, dim] -> x after the step [1, A], velocity [2, A].
    Row 0 of velocity is conditional, row 1 unconditional (a zero condition).
    """

    time_tokens: torch.Tensor

    def __init__(self, head: AcousticTransformer):
        super().__init__()
        self.input_projection, self.output = head.input_projection, head.acoustic_codebook_output
        self.layers, self.norm = head.layers, head.norm
        self.dt = 1.0 / head.args.n_decoding_steps
        self.register_buffer("time_tokens", head.time_tokens(), persistent=False)

    def forward(self, x: torch.Tensor, step: torch.Tensor, condition: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shared = torch.stack((self.input_projection(x), self.time_tokens[step]), dim=1)  # [1, 2, dim]
        given = torch.stack((condition, torch.zeros_like(condition)), dim=0)  # [2, 1, dim]
        tokens = torch.cat((torch.cat((shared, shared), dim=0), given), dim=1)  # [2, 3, dim]
        for block in self.layers:
            tokens = block(tokens)
        velocity = self.output(self.norm(tokens[:, 0]))  # [2, A]
        guided = CFG_ALPHA * velocity[:1] + (1 - CFG_ALPHA) * velocity[1:]
        return x + guided * self.dt, velocity
