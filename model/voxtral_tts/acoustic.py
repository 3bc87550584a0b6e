"""The flow-matching head: 36 acoustic values of a frame from noise, in a fixed number of Euler steps."""

import math

import torch
from torch import nn

from model.layers.attention import Attention
from model.layers.block import BlockWeights, parts_of
from model.layers.feed_forward import FeedForward
from model.voxtral_tts.config import AcousticTransformerArgs
from model.voxtral_tts.weights import AcousticWeights

CFG_ALPHA = 1.2  # scale of classifier-free guidance; absent from params.json, fixed in the published code
TIME_BASE = 10000.0


class BidirectionalBlock(nn.Module):
    """A pre-norm block without positions, cache and mask.

    The last block computes queries of fewer rows than keys.
    """

    def __init__(self, weights: BlockWeights, is_last: bool):
        super().__init__()
        self.attention = Attention(weights.attention, separate_queries=is_last)
        self.attention_norm = weights.attention_norm
        self.feed_forward = FeedForward(weights.feed_forward)
        self.ffn_norm = weights.ffn_norm

    def project(
        self, x: torch.Tensor, queries: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """x [B, S, dim] -> q of the first `queries` rows (None: all), k and v [B, S, heads, D]."""
        return self.attention.project(self.attention_norm(x), queries)

    def forward(self, x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """x [2B, Q, dim], with its queries and the keys and values of all tokens -> [2B, Q, dim]."""
        x = x + self.attention.wo(self.attention.kernel.uncached(q, k, v).flatten(-2))
        y: torch.Tensor = x + self.feed_forward(self.ffn_norm(x))
        return y


def embed_time(args: AcousticTransformerArgs) -> torch.Tensor:
    """concat(cos(t·w), sin(t·w)) at t = i / steps: float32 [steps, dim]."""
    half = args.dim // 2
    frequency = torch.exp(-math.log(TIME_BASE) * torch.arange(half, dtype=torch.float32) / half)
    t = torch.linspace(0, 1, args.n_decoding_steps + 1)[:-1, None]
    return torch.cat(((t * frequency).cos(), (t * frequency).sin()), dim=-1)


class AcousticStep(nn.Module):
    """One Euler step, with the guided and the unguided velocity in one batch of 2 per stream.

    x [B, A], step int64 [B] (0 … steps - 1), condition [B, dim] -> next x [B, A], velocity [B, 2, A].
    The first of two velocities is conditional, the second unconditional (a zero condition).

    Known values are folded. In the first layer the state is the same in both rows. The time token is one of a
    few constants. A zero condition has zero queries, keys and values, because there is no bias. The last
    layer computes the row of the state only.
    """

    time_tokens: torch.Tensor
    time_q: torch.Tensor
    time_k: torch.Tensor
    time_v: torch.Tensor

    def __init__(self, weights: AcousticWeights, args: AcousticTransformerArgs):
        super().__init__()
        self.input_projection: nn.Module = weights.input_projection
        self.output: nn.Module = weights.acoustic_codebook_output
        parts = parts_of(weights.layers, BlockWeights)
        self.layers = nn.ModuleList(BidirectionalBlock(part, part is parts[-1]) for part in parts)
        self.norm = weights.norm
        self.dt = 1.0 / args.n_decoding_steps
        time_tokens = weights.time_projection(embed_time(args))
        self.register_buffer("time_tokens", time_tokens, persistent=False)
        for name, part in zip(("time_q", "time_k", "time_v"), self._project(time_tokens[None]), strict=True):
            # [steps, heads, D]; a copy, so that no buffer is a view of another
            own = part[0].clone(memory_format=torch.contiguous_format)
            self.register_buffer(name, own, persistent=False)

    def forward(
        self, x: torch.Tensor, step: torch.Tensor, condition: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.input_projection(x)  # [B, dim]
        tokens = torch.stack((state, self.time_tokens[step], condition), dim=1)  # [B, 3, dim]
        unconditional_tokens = torch.cat((tokens[:, :2], torch.zeros_like(tokens[:, 2:])), dim=1)
        times = (self.time_q, self.time_k, self.time_v)
        projected = [
            _both(part[:, :1], time[step][:, None], part[:, 1:])
            for part, time in zip(self._project(tokens[:, ::2]), times, strict=True)
        ]
        tokens = torch.cat((tokens, unconditional_tokens), dim=0)  # [2B, 3, dim]
        for index, block in enumerate(parts_of(self.layers, BidirectionalBlock)):
            is_last = index == len(self.layers) - 1
            q, k, v = projected if index == 0 else block.project(tokens, 1 if is_last else None)
            tokens = block(
                tokens[:, :1] if is_last else tokens, q[:, :1] if is_last and index == 0 else q, k, v
            )
        output = self.output(self.norm(tokens[:, 0]))
        conditional, unconditional = output.unflatten(0, (2, -1)).unbind()  # [B, A] each
        guided = CFG_ALPHA * conditional + (1 - CFG_ALPHA) * unconditional
        return x + guided * self.dt, torch.stack((conditional, unconditional), dim=1)

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values of the first layer."""
        return parts_of(self.layers, BidirectionalBlock)[0].project(x)


def _both(state: torch.Tensor, time: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
    """Three tokens [B, 1, heads, D] -> [2B, 3, heads, D]: with the condition, then with zeros."""
    shared = torch.cat((state, time), dim=1)
    conditional = torch.cat((shared, condition), dim=1)
    return torch.cat((conditional, torch.cat((shared, torch.zeros_like(condition)), dim=1)), dim=0)
