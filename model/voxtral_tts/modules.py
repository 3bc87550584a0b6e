"""The modules of Voxtral-TTS but for the codec: holders of the checkpoint's tensors, backbone, acoustic head.

Holders have parameters of the published names and compute nothing. `graphs.py` makes the computing modules
from them.
"""

import math

import torch
from torch import nn

from voxport.model.layers.basic import Layer, RMSNorm
from voxport.model.layers.block import Block, BlockWeights, PreNorm, parts_of, run_blocks
from voxport.model.layers.rope import RotaryTable
from voxport.model.voxtral_tts.codec import CodecWeights
from voxport.model.voxtral_tts.config import VoxtralTTSConfig

CFG_ALPHA = 1.2  # scale of classifier-free guidance; absent from params.json, fixed in the published code
TIME_BASE = 10000.0


class AcousticWeights(nn.Module):
    """All `acoustic_transformer.*` tensors."""

    def __init__(self, config: VoxtralTTSConfig):
        super().__init__()
        args, books = config.acoustic, config.audio.n_acoustic_codebook
        self.input_projection = nn.Linear(books, args.dim, bias=False)
        self.time_projection = nn.Linear(args.dim, args.dim, bias=False)
        self.llm_projection = nn.Linear(args.input_dim, args.dim, bias=False)
        self.semantic_codebook_output = nn.Linear(config.dim, config.semantic_rows, bias=False)
        self.acoustic_codebook_output = nn.Linear(args.dim, books, bias=False)
        self.norm = RMSNorm(args.dim, args.norm_eps)
        self.layers = nn.ModuleList(BlockWeights(args) for _ in range(args.n_layers))


class VoxtralTTSWeights(nn.Module):
    """All tensors of a checkpoint."""

    def __init__(self, config: VoxtralTTSConfig):
        super().__init__()
        codes = nn.ModuleDict({"embeddings": nn.Embedding(config.code_table_rows, config.dim)})
        self.mm_audio_embeddings = nn.ModuleDict(
            {
                "tok_embeddings": nn.Embedding(config.vocab_size, config.dim),
                "audio_codebook_embeddings": codes,
            }
        )
        self.layers = nn.ModuleList(BlockWeights(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.acoustic_transformer = AcousticWeights(config)
        self.audio_tokenizer = CodecWeights(config.codec)


class Backbone(nn.Module):
    """The graph of `prefill` and `decode_step`.

    embeddings [B, S, dim], position int64 [B] of each first row, then k and v cache of every layer
    -> hidden [B, S, dim] (final-normed), semantic_logits [B, rows] and condition [B, dim] of the last row,
    then the caches.
    `condition` is llm_projection(hidden), which the acoustic head needs once per frame.
    """

    def __init__(self, weights: VoxtralTTSWeights, config: VoxtralTTSConfig, cache_length: int):
        super().__init__()
        head = weights.acoustic_transformer
        self.layers = nn.ModuleList(Block(part) for part in parts_of(weights.layers, BlockWeights))
        self.norm = weights.norm
        self.rotary = RotaryTable(config.head_dim, config.rope_theta, cache_length)
        self.semantic_head = head.semantic_codebook_output
        self.llm_projection = head.llm_projection

    def forward(
        self, embeddings: torch.Tensor, position: torch.Tensor, *caches: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        rotation = self.rotary(position[:, None] + torch.arange(embeddings.shape[1]))
        x, written = run_blocks(self.layers, embeddings, rotation, caches, position)
        hidden = self.norm(x)
        last = hidden[:, -1]  # [B, dim]
        return hidden, self.semantic_head(last), self.llm_projection(last), *written


class CodeEmbedding(nn.Module):
    """codes int64 [B, K] of one frame -> embedding [B, 1, dim]: the sum of one table row per code book."""

    def __init__(self, table: nn.Module, offsets: tuple[int, ...]):
        super().__init__()
        self.table: Layer = table
        self.offsets = nn.Buffer(torch.tensor(offsets), persistent=False)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        rows = self.table(codes + self.offsets)  # [B, K, dim]
        return rows.sum(dim=1, keepdim=True)


class BidirectionalBlock(PreNorm):
    """A block without positions, cache and mask. The last one computes queries of fewer rows than keys."""

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


def embed_time(dim: int, steps: int) -> torch.Tensor:
    """concat(cos(t·w), sin(t·w)) at t = i / steps: float32 [steps, dim]."""
    half = dim // 2
    frequency = torch.exp(-math.log(TIME_BASE) * torch.arange(half, dtype=torch.float32) / half)
    t = torch.linspace(0, 1, steps + 1)[:-1, None]
    return torch.cat(((t * frequency).cos(), (t * frequency).sin()), dim=-1)


class AcousticStep(nn.Module):
    """One Euler step, with the guided and the unguided velocity in one batch of 2 per stream.

    x [B, A], step int64 [B] (0 … steps - 1), condition [B, dim] -> next x [B, A], velocity [B, 2, A].
    The first of two velocities is conditional, the second unconditional (a zero condition).

    Known values are folded. In the first layer the state is the same in both rows. The time token is one of a
    few constants. A zero condition has zero queries, keys and values, because there is no bias. The last
    layer computes the row of the state only.
    """

    def __init__(self, weights: AcousticWeights, dim: int, steps: int):
        super().__init__()
        self.input_projection: Layer = weights.input_projection
        self.output: Layer = weights.acoustic_codebook_output
        parts = parts_of(weights.layers, BlockWeights)
        self.layers = nn.ModuleList(
            BidirectionalBlock(part, separate_queries=part is parts[-1]) for part in parts
        )
        self.norm = weights.norm
        self.dt = 1.0 / steps
        time_tokens = weights.time_projection(embed_time(dim, steps))
        self.time_tokens = nn.Buffer(time_tokens, persistent=False)
        # [steps, heads, D]; copies, so that no buffer is a view of another
        contiguous = torch.contiguous_format
        q, k, v = (part[0].clone(memory_format=contiguous) for part in self._project(time_tokens[None]))
        self.time_q = nn.Buffer(q, persistent=False)
        self.time_k = nn.Buffer(k, persistent=False)
        self.time_v = nn.Buffer(v, persistent=False)

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
