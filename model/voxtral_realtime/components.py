"""The family's root module, and what of it is exported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from bundle.cache import LayoutName, cache_shape
from bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from model.checkpoint import Checkpoint, expected_tensors
from model.component import Component
from model.layers.attention import Attention, ReferenceAttention, join_products
from model.layers.norm import RMSNorm
from model.layers.rope import RollingRotaryTable
from model.voxtral_realtime.config import (
    BOS_ID,
    EOS_ID,
    FIRST_TEXT_ID,
    FLUSH_TOKENS,
    KERNEL,
    LEFT_PAD_TOKENS,
    LOG_MEL_FLOOR,
    PAD_ID,
    WORD_ID,
    Switches,
    VoxtralRealtimeConfig,
    delay_tokens,
)
from model.voxtral_realtime.decoder import AudioEmbedding, DecoderBlock, DecoderGraph, TokenEmbeddingGraph
from model.voxtral_realtime.encoder import EncoderGraph, WhisperEncoder

AUDIO = "mm_streams_embeddings.embedding_module"
MOST_TOKENS = 32  # that one call encodes: 2.56 s; longer recordings are calls one after another
MEL_RANGE = (-0.625, 1.6)  # of a log-mel value, digital silence to full scale

HIGH_PRECISION: tuple[str, ...] = ()
CONSTANT = ("layers.*.ada_rms_norm_t_cond.*",)  # multiplied once at export; in no graph
WEIGHTS_OF_GRAPH = {
    "embed_tokens": (f"{AUDIO}.tok_embeddings",),
    "encoder": (f"{AUDIO}.whisper_encoder", f"{AUDIO}.audio_language_projection"),
    "decoder": ("layers", "norm", "output"),
}


class VoxtralRealtime(nn.Module):
    """All tensors of a checkpoint under their own names, and the head, which is the token table until a recipe holds it otherwise."""

    def __init__(self, config: VoxtralRealtimeConfig):
        super().__init__()
        self.mm_streams_embeddings = nn.ModuleDict(
            {"embedding_module": AudioEmbedding(config, WhisperEncoder(config.encoder))}
        )
        self.layers = nn.ModuleList(DecoderBlock(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.output = nn.Linear(config.dim, config.vocab_size, bias=False)
        self.output.weight = self.audio.tok_embeddings.weight

    @property
    def audio(self) -> AudioEmbedding:
        return self.mm_streams_embeddings["embedding_module"]


def build_root(config: VoxtralRealtimeConfig) -> VoxtralRealtime:
    """The root module on the meta device: shapes without storage."""
    with torch.device("meta"):
        return VoxtralRealtime(config).requires_grad_(False)


def open_root(config: VoxtralRealtimeConfig, checkpoint: Checkpoint) -> VoxtralRealtime:
    """The root module for a checkpoint, every tensor of it checked and none loaded. Raises CheckpointError."""
    root = build_root(config)
    checkpoint.check(expected_tensors(root))
    return root


def constants(config: VoxtralRealtimeConfig, switches: Switches) -> dict[str, Any]:
    """All that a runner must know besides names and shapes."""
    audio = config.audio
    return {
        "sample_rate": audio.sampling_rate,
        "samples_per_token": config.samples_per_token,
        "n_mels": audio.num_mel_bins,
        "hop_length": audio.hop_length,
        "window_size": audio.window_size,
        "log_mel_least": audio.global_log_mel_max - LOG_MEL_FLOOR,
        "dim": config.dim,
        "vocab_size": config.vocab_size,
        "left_pad_tokens": LEFT_PAD_TOKENS,
        "flush_tokens": FLUSH_TOKENS,
        "bos_id": BOS_ID,
        "eos_id": EOS_ID,
        "pad_id": PAD_ID,
        "word_id": WORD_ID,
        "first_text_id": FIRST_TEXT_ID,
        "delays_ms": list(switches.delays_ms),
        "delays": [delay_tokens(delay, config) for delay in switches.delays_ms],
    }


def longest_cache(config: VoxtralRealtimeConfig) -> int:
    """Rows beyond which a cache of the decoder has nothing to hold."""
    return config.sliding_window


def components(
    root: VoxtralRealtime,
    config: VoxtralRealtimeConfig,
    switches: Switches,
    cache_length: int,
    layout: LayoutName = "BSHD",
    only: str | None = None,
) -> list[Component]:
    """All components, or those of the graph `only`. Build them after the graph's weights are in place: constants are derived here."""
    makers: dict[str, Callable[[], list[Component]]] = {
        "embed_tokens": lambda: [_embed_tokens(root, config, cache_length)],
        "encoder": lambda: _encoder(root, config, switches, layout),
        "decoder": lambda: _decoder(root, config, switches, cache_length, layout),
    }
    return [component for graph, make in makers.items() if only in (None, graph) for component in make()]


def _roll(module: nn.Module, window: int, layout: LayoutName) -> None:
    for part in module.modules():
        if isinstance(part, Attention):
            part.window, part.kernel = window, ReferenceAttention(layout)


def _embed_tokens(root: VoxtralRealtime, config: VoxtralRealtimeConfig, cache_length: int) -> Component:
    def example(seed: int, S: int = 8) -> dict[str, np.ndarray]:
        return {"ids": np.random.default_rng(seed).integers(0, config.vocab_size, (1, S))}

    return Component(
        name="embed_tokens",
        graph="embed_tokens",
        module=TokenEmbeddingGraph(root.audio.tok_embeddings),
        signature=Signature(
            inputs=(TensorSpec("ids", "int64", (1, "S"), Kind.INDEX),),
            outputs=(TensorSpec("embeddings", "float32", (1, "S", config.dim), Kind.EMBEDDING),),
            dims={"S": (1, cache_length)},
        ),
        example=example,
        purpose="rows of the token table, which are added to the audio's",
    )


def _encoder(
    root: VoxtralRealtime, config: VoxtralRealtimeConfig, switches: Switches, layout: LayoutName
) -> list[Component]:
    args, frames, mels = config.encoder, config.mel_frames_per_token, config.audio.num_mel_bins
    encoder = root.audio.whisper_encoder
    join_products(encoder)
    _roll(encoder, args.sliding_window, layout)
    graph = EncoderGraph(encoder, root.audio.audio_language_projection, config)
    at_once = config.downsample * MOST_TOKENS
    shape = cache_shape(layout, args.sliding_window - 1 + at_once, args.n_kv_heads, args.head_dim)
    states = (
        StateSpec("conv_0", "float32", (1, KERNEL - 1, mels)),
        StateSpec("conv_1", "float32", (1, 1, args.dim)),
        *(
            StateSpec(
                f"encoder_{kind}_cache_{i}",
                "float32",
                shape,
                CacheSpec(layout, args.sliding_window, config.downsample, at_once),
            )
            for i in range(args.n_layers)
            for kind in "kv"
        ),
    )

    def component(name: str, tokens: int | str, purpose: str) -> Component:
        def example(seed: int, T: int = 3) -> dict[str, np.ndarray]:
            count = T if tokens == "T" else 1
            return {
                "mel": np.random.default_rng(seed)
                .uniform(*MEL_RANGE, (1, count, frames, mels))
                .astype(np.float32),
                "position": np.array([0]),
            }

        return Component(
            name=name,
            graph="encoder",
            module=graph,
            signature=Signature(
                inputs=(
                    TensorSpec("mel", "float32", (1, tokens, frames, mels), Kind.HIDDEN),
                    TensorSpec("position", "int64", (1,), Kind.INDEX),
                ),
                outputs=(TensorSpec("embeddings", "float32", (1, tokens, config.dim), Kind.EMBEDDING),),
                states=states,
                dims={"T": (1, MOST_TOKENS)} if tokens == "T" else {},
            ),
            example=example,
            purpose=purpose,
        )

    whole = component(
        "audio_encoder",
        "T",
        "the next log-mel frames of a recording to embeddings; `position` counts the tokens encoded before",
    )
    step = component("encode_chunk", 1, "the next 80 ms of a live stream, in the same way")
    return [whole, step] if switches.streaming else [whole]


def _decoder(
    root: VoxtralRealtime,
    config: VoxtralRealtimeConfig,
    switches: Switches,
    cache_length: int,
    layout: LayoutName,
) -> list[Component]:
    window, delays = (
        min(config.sliding_window, cache_length),
        tuple(delay_tokens(delay, config) for delay in switches.delays_ms),
    )
    prompt = 1 + LEFT_PAD_TOKENS + max(delays)  # runtimes hold memory for as many rows as a call may take
    for block in root.layers:
        block.fold(delays)
    join_products(root.layers)
    _roll(root.layers, window, layout)
    graph = DecoderGraph(
        root.layers, root.norm, root.output, RollingRotaryTable(config.head_dim, config.rope_theta)
    )
    shape = cache_shape(layout, window, config.n_kv_heads, config.head_dim)
    names = (f"{kind}_cache_{i}" for i in range(config.n_layers) for kind in "kv")
    states = tuple(StateSpec(name, "float32", shape, CacheSpec(layout, window)) for name in names)

    def component(name: str, rows: int | str, purpose: str) -> Component:
        def example(seed: int, S: int = 8) -> dict[str, np.ndarray]:
            rng = np.random.default_rng(seed)
            values = rng.standard_normal((1, S if rows == "S" else 1, config.dim), dtype=np.float32)
            return {
                "embeddings": values,
                "position": np.array([0]),
                "delay": rng.integers(0, len(switches.delays_ms), (1,)),
            }

        return Component(
            name=name,
            graph="decoder",
            module=graph,
            signature=Signature(
                inputs=(
                    TensorSpec("embeddings", "float32", (1, rows, config.dim), Kind.EMBEDDING),
                    TensorSpec("position", "int64", (1,), Kind.INDEX),
                    TensorSpec("delay", "int64", (1,), Kind.INDEX),
                ),
                outputs=(
                    TensorSpec("hidden", "float32", (1, rows, config.dim), Kind.HIDDEN),
                    TensorSpec("logits", "float32", (1, config.vocab_size), Kind.LOGITS),
                ),
                states=states,
                dims={"S": (1, min(window, prompt))} if rows == "S" else {},
            ),
            example=example,
            purpose=purpose,
        )

    return [
        component(
            "prefill",
            "S",
            "embeddings of the prompt, or of its first rows, written to the cache from `position` on, not beyond its rows",
        ),
        component(
            "decode_step",
            1,
            "sum of the embeddings of a token and of its 80 ms of audio; `position` may go on beyond the cache's rows",
        ),
    ]
