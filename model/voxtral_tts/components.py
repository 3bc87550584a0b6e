"""The components of Voxtral-TTS, as data."""

from functools import partial
from typing import Any

import numpy as np

from bundle.cache import LayoutName, cache_shape
from bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from model.component import Component
from model.voxtral_tts.config import FIRST_LEVEL, AudioTokenizerArgs, Options, VoxtralTTSConfig

MAX_CODEC_FRAMES = 256  # frames of one codec call; codec_step decodes longer utterances
Inputs = dict[str, np.ndarray]


def constants(config: VoxtralTTSConfig, options: Options) -> dict[str, Any]:
    """Everything that a runner needs besides names and shapes."""
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
    config: VoxtralTTSConfig, options: Options, cache_length: int, layout: LayoutName = "BSHD"
) -> tuple[Component, ...]:
    """All components. The caches of the backbone have `cache_length` rows in `layout`."""
    codec = partial(_codec, config)
    return (
        _embed_text(config, cache_length),
        _embed_codes(config),
        _prefill(config, cache_length, layout),
        _decode_step(config, cache_length, layout),
        _acoustic_step(config),
        codec(
            "codec", "codes of a whole utterance to samples; `position` is 0, and the states have no effect"
        ),
        codec(
            "codec_step", "the next frames of an utterance to samples; `position` counts the frames before"
        ),
    )


def _embed_text(config: VoxtralTTSConfig, cache_length: int) -> Component:
    def example(seed: int, S: int = 8) -> Inputs:
        return {"ids": np.random.default_rng(seed).integers(0, config.vocab_size, (1, S))}

    return Component(
        name="embed_text",
        graph="embed_text",
        signature=Signature(
            inputs=(TensorSpec("ids", "int64", (1, "S"), Kind.INDEX),),
            outputs=(TensorSpec("embeddings", "float32", (1, "S", config.dim), Kind.EMBEDDING),),
            dims={"S": (1, cache_length)},
        ),
        example=example,
        purpose="rows of the text table; the voice then overwrites the rows of [AUDIO] ids",
    )


def _embed_codes(config: VoxtralTTSConfig) -> Component:
    def example(seed: int) -> Inputs:
        return {"codes": _random_codes(config, seed, 1)[:, 0]}

    return Component(
        name="embed_codes",
        graph="embed_codes",
        signature=Signature(
            inputs=(TensorSpec("codes", "int64", (1, config.n_codebooks), Kind.INDEX),),
            outputs=(TensorSpec("embeddings", "float32", (1, 1, config.dim), Kind.EMBEDDING),),
        ),
        example=example,
        purpose="codes of one frame, specials counted, to the next input of decode_step",
        batched=True,
    )


def _prefill(config: VoxtralTTSConfig, cache_length: int, layout: LayoutName) -> Component:
    def example(seed: int, S: int = 8) -> Inputs:
        return _random_embeddings(config, seed, S)

    return Component(
        name="prefill",
        graph="backbone",
        signature=_backbone_signature(config, "S", cache_length, layout),
        example=example,
        purpose="embeddings of the prompt, written to the cache from `position` on",
    )


def _decode_step(config: VoxtralTTSConfig, cache_length: int, layout: LayoutName) -> Component:
    def example(seed: int) -> Inputs:
        return _random_embeddings(config, seed, 1)

    return Component(
        name="decode_step",
        graph="backbone",
        signature=_backbone_signature(config, 1, cache_length, layout),
        example=example,
        purpose="embedding of the last frame, written to the cache at `position`",
        batched=True,
    )


def _backbone_signature(
    config: VoxtralTTSConfig, rows: int | str, cache_length: int, layout: LayoutName
) -> Signature:
    shape = cache_shape(layout, cache_length, config.n_kv_heads, config.head_dim)
    return Signature(
        inputs=(
            TensorSpec("embeddings", "float32", (1, rows, config.dim), Kind.EMBEDDING),
            TensorSpec("position", "int64", (1,), Kind.INDEX),
        ),
        outputs=(
            TensorSpec("hidden", "float32", (1, rows, config.dim), Kind.HIDDEN),
            TensorSpec("semantic_logits", "float32", (1, config.semantic_rows), Kind.LOGITS),
            TensorSpec("condition", "float32", (1, config.acoustic.dim), Kind.HIDDEN),
        ),
        states=tuple(
            StateSpec(f"{kind}_cache_{i}", "float32", shape, CacheSpec(layout))
            for i in range(config.n_layers)
            for kind in "kv"
        ),
        dims={"S": (1, cache_length)} if rows == "S" else {},
    )


def _acoustic_step(config: VoxtralTTSConfig) -> Component:
    books, steps = config.audio.n_acoustic_codebook, config.acoustic.n_decoding_steps

    def example(seed: int) -> Inputs:
        rng = np.random.default_rng(seed)
        return {
            "x": rng.standard_normal((1, books), dtype=np.float32),
            "step": rng.integers(0, steps, (1,)),
            "condition": rng.standard_normal((1, config.acoustic.dim), dtype=np.float32),
        }

    return Component(
        name="acoustic_step",
        graph="acoustic_step",
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


def _codec(config: VoxtralTTSConfig, name: str, purpose: str) -> Component:
    def example(seed: int, T: int = 1) -> Inputs:
        return {"codes": _random_codes(config, seed, T), "position": np.array([0])}

    samples = config.codec.samples_per_frame
    return Component(
        name=name,
        graph="codec",
        signature=Signature(
            inputs=(
                TensorSpec("codes", "int64", (1, "T", config.n_codebooks), Kind.INDEX),
                TensorSpec("position", "int64", (1,), Kind.INDEX),
            ),
            outputs=(TensorSpec("audio", "float32", (1, f"{samples}*T"), Kind.AUDIO),),
            states=_codec_states(config.codec),
            dims={"T": (1, MAX_CODEC_FRAMES)},
        ),
        example=example,
        purpose=purpose,
    )


def _codec_states(args: AudioTokenizerArgs) -> tuple[StateSpec, ...]:
    """States of the codec between calls, in the order of the arguments of `Codec.forward`."""
    width = args.n_heads * args.head_dim
    rows = [("latent", args.decoder_convs_kernels[0] - 1, args.semantic_dim + args.acoustic_dim)]
    for stage, length in enumerate(args.decoder_transformer_lengths):
        if stage:
            rows.append((f"upsampler_{stage}", 1, args.dim))
        context = args.context_frames[stage] * args.rates[stage]
        rows += [(f"{kind}_{stage}_{layer}", context, width) for layer in range(length) for kind in "kv"]
    rows.append(("output", args.patch_proj_kernel_size - 1, args.dim))
    return tuple(StateSpec(name, "float32", (1, length, size)) for name, length, size in rows)


def _random_embeddings(config: VoxtralTTSConfig, seed: int, rows: int) -> Inputs:
    values = np.random.default_rng(seed).standard_normal((1, rows, config.dim), dtype=np.float32)
    return {"embeddings": values, "position": np.array([0])}


def _random_codes(config: VoxtralTTSConfig, seed: int, frames: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    semantic = rng.integers(0, config.audio.semantic_codebook_size, (1, frames, 1))
    shape = (1, frames, config.audio.n_acoustic_codebook)
    acoustic = rng.integers(0, config.audio.acoustic_codebook_size, shape)
    return np.concatenate((semantic, acoustic), axis=-1) + FIRST_LEVEL
