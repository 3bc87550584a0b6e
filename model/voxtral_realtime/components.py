"""The components of Voxtral-Realtime, as data."""

from typing import Any

import numpy as np

from bundle.cache import LayoutName, cache_shape
from bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec
from model.component import Component
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
    Options,
    VoxtralRealtimeConfig,
)

MAX_ENCODER_TOKENS = 32  # of one encoder call: 2.56 s; a longer recording is several calls
MEL_RANGE = (-0.625, 1.6)  # of a log-mel value, digital silence to full scale
Inputs = dict[str, np.ndarray]


def constants(config: VoxtralRealtimeConfig, options: Options) -> dict[str, Any]:
    """Everything that a runner needs besides names and shapes."""
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
        "delays_ms": list(options.delays_ms),
        "delays": list(options.delays(config)),
    }


def longest_cache(config: VoxtralRealtimeConfig) -> int:
    """Rows beyond which a cache of the decoder has nothing to hold."""
    return config.sliding_window


def components(
    config: VoxtralRealtimeConfig, options: Options, cache_length: int, layout: LayoutName = "BSHD"
) -> tuple[Component, ...]:
    """All components. The caches of the decoder have at most `cache_length` rows in `layout`."""
    window = min(config.sliding_window, cache_length)
    return (
        _embed_tokens(config, cache_length),
        _audio_encoder(config, layout),
        *((_encode_chunk(config, layout),) if options.streaming else ()),
        _prefill(config, options, window, layout),
        _decode_step(config, options, window, layout),
    )


def _embed_tokens(config: VoxtralRealtimeConfig, cache_length: int) -> Component:
    def example(seed: int, S: int = 8) -> Inputs:
        return {"ids": np.random.default_rng(seed).integers(0, config.vocab_size, (1, S))}

    return Component(
        name="embed_tokens",
        graph="embed_tokens",
        signature=Signature(
            inputs=(TensorSpec("ids", "int64", (1, "S"), Kind.INDEX),),
            outputs=(TensorSpec("embeddings", "float32", (1, "S", config.dim), Kind.EMBEDDING),),
            dims={"S": (1, cache_length)},
        ),
        example=example,
        purpose="rows of the token table, which are added to the audio's",
    )


def _audio_encoder(config: VoxtralRealtimeConfig, layout: LayoutName) -> Component:
    def example(seed: int, T: int = 3) -> Inputs:
        return _random_mel(config, seed, T)

    return Component(
        name="audio_encoder",
        graph="encoder",
        signature=_encoder_signature(config, "T", layout),
        example=example,
        purpose="the next log-mel frames of a recording to embeddings; "
        "`position` counts the tokens encoded before",
    )


def _encode_chunk(config: VoxtralRealtimeConfig, layout: LayoutName) -> Component:
    def example(seed: int) -> Inputs:
        return _random_mel(config, seed, 1)

    return Component(
        name="encode_chunk",
        graph="encoder",
        signature=_encoder_signature(config, 1, layout),
        example=example,
        purpose="the next 80 ms of a live stream, in the same way",
    )


def _encoder_signature(config: VoxtralRealtimeConfig, tokens: int | str, layout: LayoutName) -> Signature:
    args, mels = config.encoder, config.audio.num_mel_bins
    max_rows = config.downsample * MAX_ENCODER_TOKENS
    shape = cache_shape(layout, args.sliding_window - 1 + max_rows, args.n_kv_heads, args.head_dim)
    cache = CacheSpec(layout, args.sliding_window, config.downsample, max_rows)
    caches = (f"encoder_{kind}_cache_{i}" for i in range(args.n_layers) for kind in "kv")
    return Signature(
        inputs=(
            TensorSpec("mel", "float32", (1, tokens, config.mel_frames_per_token, mels), Kind.HIDDEN),
            TensorSpec("position", "int64", (1,), Kind.INDEX),
        ),
        outputs=(TensorSpec("embeddings", "float32", (1, tokens, config.dim), Kind.EMBEDDING),),
        states=(
            StateSpec("conv_0", "float32", (1, KERNEL - 1, mels)),
            StateSpec("conv_1", "float32", (1, 1, args.dim)),
            *(StateSpec(name, "float32", shape, cache) for name in caches),
        ),
        dims={"T": (1, MAX_ENCODER_TOKENS)} if tokens == "T" else {},
    )


def _prefill(config: VoxtralRealtimeConfig, options: Options, window: int, layout: LayoutName) -> Component:
    def example(seed: int, S: int = 8) -> Inputs:
        return _random_embeddings(config, options, seed, S)

    # Runtimes hold memory for as many rows as a call may have, so the bound is the longest prompt.
    prompt = 1 + LEFT_PAD_TOKENS + max(options.delays(config))
    return Component(
        name="prefill",
        graph="decoder",
        signature=_decoder_signature(config, "S", window, layout, {"S": (1, min(window, prompt))}),
        example=example,
        purpose="embeddings of the prompt, or of its first rows, written to the cache from `position` on; "
        "the rows of the cache bound them",
    )


def _decode_step(
    config: VoxtralRealtimeConfig, options: Options, window: int, layout: LayoutName
) -> Component:
    def example(seed: int) -> Inputs:
        return _random_embeddings(config, options, seed, 1)

    return Component(
        name="decode_step",
        graph="decoder",
        signature=_decoder_signature(config, 1, window, layout, {}),
        example=example,
        purpose="sum of the embeddings of a token and of its 80 ms of audio; "
        "`position` may exceed the cache's rows",
    )


def _decoder_signature(
    config: VoxtralRealtimeConfig,
    rows: int | str,
    window: int,
    layout: LayoutName,
    dims: dict[str, tuple[int, int]],
) -> Signature:
    shape = cache_shape(layout, window, config.n_kv_heads, config.head_dim)
    names = (f"{kind}_cache_{i}" for i in range(config.n_layers) for kind in "kv")
    return Signature(
        inputs=(
            TensorSpec("embeddings", "float32", (1, rows, config.dim), Kind.EMBEDDING),
            TensorSpec("position", "int64", (1,), Kind.INDEX),
            TensorSpec("delay", "int64", (1,), Kind.INDEX),
        ),
        outputs=(
            TensorSpec("hidden", "float32", (1, rows, config.dim), Kind.HIDDEN),
            TensorSpec("logits", "float32", (1, config.vocab_size), Kind.LOGITS),
        ),
        states=tuple(StateSpec(name, "float32", shape, CacheSpec(layout, window)) for name in names),
        dims=dims,
    )


def _random_mel(config: VoxtralRealtimeConfig, seed: int, tokens: int) -> Inputs:
    shape = (1, tokens, config.mel_frames_per_token, config.audio.num_mel_bins)
    mel = np.random.default_rng(seed).uniform(*MEL_RANGE, shape).astype(np.float32)
    return {"mel": mel, "position": np.array([0])}


def _random_embeddings(config: VoxtralRealtimeConfig, options: Options, seed: int, rows: int) -> Inputs:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((1, rows, config.dim), dtype=np.float32)
    delay = rng.integers(0, len(options.delays_ms), (1,))
    return {"embeddings": values, "position": np.array([0]), "delay": delay}
