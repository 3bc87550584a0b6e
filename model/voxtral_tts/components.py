"""The family's root module, and what of it is exported."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from bundle.cache import LayoutName, cache_shape
from bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from model.checkpoint import Checkpoint, expected_tensors
from model.component import Component
from model.layers.attention import ReferenceAttention, join_products
from model.layers.norm import RMSNorm
from model.layers.rope import RotaryTable
from model.voxtral_tts.acoustic import AcousticStepGraph, AcousticTransformer
from model.voxtral_tts.backbone import (
    BackboneGraph,
    Block,
    CodeEmbeddingGraph,
    Embeddings,
    TextEmbeddingGraph,
)
from model.voxtral_tts.codec import AudioTokenizer, CodecGraph
from model.voxtral_tts.config import FIRST_LEVEL, Switches, VoxtralTTSConfig

log = logging.getLogger(__name__)
MAX_CODEC_FRAMES = 256  # frames of one codec call; longer utterances go through codec_step, which has no end

# Small products whose error the sampler or the stopping rule would feel: kept as floats unless a rule says otherwise.
HIGH_PRECISION = (
    "acoustic_transformer.input_projection",
    "acoustic_transformer.acoustic_codebook_output",
    "acoustic_transformer.semantic_codebook_output",
)
CONSTANT = ("acoustic_transformer.time_projection",)  # multiplied once at export; in no graph


class VoxtralTTS(nn.Module):
    """All tensors of a checkpoint under their own names."""

    def __init__(self, config: VoxtralTTSConfig, code_table_rows: int):
        super().__init__()
        self.mm_audio_embeddings = Embeddings(config, code_table_rows)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.acoustic_transformer = AcousticTransformer(config)
        self.audio_tokenizer = AudioTokenizer(config.codec)


def build_root(config: VoxtralTTSConfig, code_table_rows: int | None = None) -> VoxtralTTS:
    """The root module on the meta device: shapes without storage."""
    with torch.device("meta"):
        return VoxtralTTS(config, code_table_rows or config.code_table_rows).requires_grad_(False)


def open_root(config: VoxtralTTSConfig, checkpoint: Checkpoint) -> VoxtralTTS:
    """The root module for a checkpoint, every tensor of it checked and none loaded. Raises CheckpointError.

    A short table of code embeddings is taken, with a warning: checkpoints that other tools wrote at small sizes have it.
    """
    table = "mm_audio_embeddings.audio_codebook_embeddings.embeddings.weight"
    rows = checkpoint.shape(table)[0] if table in checkpoint.names else None
    short = rows == config.short_code_table_rows < config.addressed_code_rows
    root = build_root(config, rows if short else None)
    checkpoint.check(expected_tensors(root))
    if short:
        log.warning(
            "%s: tensor %s has %d rows, codes name %d: rows beyond the end read as zero",
            checkpoint.path,
            table,
            rows,
            config.addressed_code_rows,
        )
    return root


WEIGHTS_OF_GRAPH = {
    "embed_text": ("mm_audio_embeddings.tok_embeddings",),
    "embed_codes": ("mm_audio_embeddings.audio_codebook_embeddings",),
    "backbone": (
        "layers",
        "norm",
        "acoustic_transformer.semantic_codebook_output",
        "acoustic_transformer.llm_projection",
    ),
    "acoustic_step": (
        "acoustic_transformer.input_projection",
        "acoustic_transformer.time_projection",
        "acoustic_transformer.acoustic_codebook_output",
        "acoustic_transformer.norm",
        "acoustic_transformer.layers",
    ),
    "codec": ("audio_tokenizer",),
}


def constants(config: VoxtralTTSConfig) -> dict[str, Any]:
    """All that a runner must know besides names and shapes."""
    return {
        "sample_rate": config.codec.sampling_rate,
        "samples_per_frame": config.codec.samples_per_frame,
        "dim": config.dim,
        "vocab_size": config.vocab_size,
        "n_codebooks": config.n_codebooks,
        "semantic_codes": config.audio.semantic_codebook_size,
        "acoustic_levels": config.audio.acoustic_codebook_size,
        "euler_steps": config.acoustic.n_decoding_steps,
        "bos_id": config.multimodal.bos_token_id,
        "audio_id": config.audio.audio_token_id,
        "begin_audio_id": config.audio.begin_audio_token_id,
    }


def components(
    root: VoxtralTTS,
    config: VoxtralTTSConfig,
    switches: Switches,
    cache_length: int,
    layout: LayoutName = "BSHD",
    only: str | None = None,
) -> list[Component]:
    """All components, or those of the graph `only`. Build them after the graph's weights are in place: constants are derived here."""
    makers: dict[str, Callable[[], list[Component]]] = {
        "embed_text": lambda: [_embed_text(root, config, cache_length)],
        "embed_codes": lambda: [_embed_codes(root, config)],
        "backbone": lambda: _backbone(root, config, cache_length, layout),
        "acoustic_step": lambda: [_acoustic_step(root, config)],
        "codec": lambda: _codec(root, config, switches),
    }
    return [component for graph, make in makers.items() if only in (None, graph) for component in make()]


def _embed_text(root: VoxtralTTS, config: VoxtralTTSConfig, cache_length: int) -> Component:
    def example(seed: int, S: int = 8) -> dict[str, np.ndarray]:
        return {"ids": np.random.default_rng(seed).integers(0, config.vocab_size, (1, S))}

    return Component(
        name="embed_text",
        graph="embed_text",
        module=TextEmbeddingGraph(root.mm_audio_embeddings.tok_embeddings),
        signature=Signature(
            inputs=(TensorSpec("ids", "int64", (1, "S"), Kind.INDEX),),
            outputs=(TensorSpec("embeddings", "float32", (1, "S", config.dim), Kind.EMBEDDING),),
            dims={"S": (1, cache_length)},
        ),
        example=example,
        purpose="rows of the text table; the rows of [AUDIO] ids are then overwritten by the voice",
    )


def _embed_codes(root: VoxtralTTS, config: VoxtralTTSConfig) -> Component:
    def example(seed: int) -> dict[str, np.ndarray]:
        return {"codes": _random_codes(config, seed, 1)[:, 0]}

    return Component(
        name="embed_codes",
        graph="embed_codes",
        module=CodeEmbeddingGraph(
            root.mm_audio_embeddings.audio_codebook_embeddings["embeddings"],
            config.code_offsets,
            config.addressed_code_rows,
        ),
        signature=Signature(
            inputs=(TensorSpec("codes", "int64", (1, config.n_codebooks), Kind.INDEX),),
            outputs=(TensorSpec("embeddings", "float32", (1, 1, config.dim), Kind.EMBEDDING),),
        ),
        example=example,
        purpose="codes of one frame, specials counted, to the next input of decode_step",
        batched=True,
    )


def _backbone(
    root: VoxtralTTS, config: VoxtralTTSConfig, cache_length: int, layout: LayoutName
) -> list[Component]:
    join_products(root.layers)
    graph = BackboneGraph(
        root.layers,
        root.norm,
        root.acoustic_transformer.semantic_codebook_output,
        root.acoustic_transformer.llm_projection,
        RotaryTable(config.head_dim, config.rope_theta, cache_length),
    )
    for block in root.layers:
        block.attention.kernel = ReferenceAttention(layout)
    shape = cache_shape(layout, cache_length, config.n_kv_heads, config.head_dim)
    states = tuple(
        StateSpec(f"{kind}_cache_{i}", "float32", shape, CacheSpec(layout))
        for i in range(config.n_layers)
        for kind in "kv"
    )

    def component(name: str, rows: int | str, purpose: str) -> Component:
        def example(seed: int, S: int = 8) -> dict[str, np.ndarray]:
            length = S if rows == "S" else 1
            values = np.random.default_rng(seed).standard_normal((1, length, config.dim), dtype=np.float32)
            return {"embeddings": values, "position": np.array([0])}

        return Component(
            name=name,
            graph="backbone",
            module=graph,
            signature=Signature(
                inputs=(
                    TensorSpec("embeddings", "float32", (1, rows, config.dim), Kind.EMBEDDING),
                    TensorSpec("position", "int64", (1,), Kind.INDEX),
                ),
                outputs=(
                    TensorSpec("hidden", "float32", (1, rows, config.dim), Kind.HIDDEN),
                    TensorSpec("semantic_logits", "float32", (1, config.semantic_rows), Kind.LOGITS),
                    TensorSpec("condition", "float32", (1, config.acoustic.dim), Kind.HIDDEN),
                ),
                states=states,
                dims={"S": (1, cache_length)} if rows == "S" else {},
            ),
            example=example,
            purpose=purpose,
            batched=rows == 1,
        )

    return [
        component("prefill", "S", "embeddings of the prompt, written to the cache from `position` on"),
        component("decode_step", 1, "embedding of the last frame, written to the cache at `position`"),
    ]


def _acoustic_step(root: VoxtralTTS, config: VoxtralTTSConfig) -> Component:
    join_products(root.acoustic_transformer.layers)
    books, steps = config.audio.n_acoustic_codebook, config.acoustic.n_decoding_steps

    def example(seed: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        return {
            "x": rng.standard_normal((1, books), dtype=np.float32),
            "step": rng.integers(0, steps, (1,)),
            "condition": rng.standard_normal((1, config.acoustic.dim), dtype=np.float32),
        }

    return Component(
        name="acoustic_step",
        graph="acoustic_step",
        module=AcousticStepGraph(root.acoustic_transformer),
        signature=Signature(
            inputs=(
                TensorSpec("x", "float32", (1, books), Kind.LATENT),
                TensorSpec("step", "int64", (1,), Kind.INDEX),
                TensorSpec("condition", "float32", (1, config.acoustic.dim), Kind.HIDDEN),
            ),
            outputs=(
                TensorSpec("next_x", "float32", (1, books), Kind.LATENT),
                TensorSpec("velocity", "float32", (1, 2, books), Kind.LATENT),
            ),
        ),
        example=example,
        purpose=f"one of {steps} Euler steps from noise to the acoustic values of a frame",
        batched=True,
    )


def _codec(root: VoxtralTTS, config: VoxtralTTSConfig, switches: Switches) -> list[Component]:
    graph = CodecGraph(root.audio_tokenizer, config.codec, switches)

    def example(seed: int, T: int = 1) -> dict[str, np.ndarray]:
        return {"codes": _random_codes(config, seed, T), "position": np.array([0])}

    def component(name: str, purpose: str) -> Component:
        return Component(
            name=name,
            graph="codec",
            module=graph,
            signature=Signature(
                inputs=(
                    TensorSpec("codes", "int64", (1, "T", config.n_codebooks), Kind.INDEX),
                    TensorSpec("position", "int64", (1,), Kind.INDEX),
                ),
                outputs=(
                    TensorSpec("audio", "float32", (1, f"{config.codec.samples_per_frame}*T"), Kind.AUDIO),
                ),
                states=graph.state_specs(),
                dims={"T": (1, MAX_CODEC_FRAMES)},
            ),
            example=example,
            purpose=purpose,
        )

    return [
        component(
            "codec",
            "codes of a whole utterance to samples: `position` is 0, what was carried before has no effect",
        ),
        component(
            "codec_step",
            "the next frames of an utterance to samples; `position` counts the frames decoded before",
        ),
    ]


def _random_codes(config: VoxtralTTSConfig, seed: int, frames: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    semantic = rng.integers(0, config.audio.semantic_codebook_size, (1, frames, 1))
    acoustic = rng.integers(
        0, config.audio.acoustic_codebook_size, (1, frames, config.audio.n_acoustic_codebook)
    )
    return np.concatenate((semantic, acoustic), axis=-1) + FIRST_LEVEL
