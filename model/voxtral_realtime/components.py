"""The components of Voxtral-Realtime, as data: signatures, constants and order of calls."""

from functools import partial

import numpy as np

from voxport.bundle.json_types import Json
from voxport.bundle.spec import CacheSpec, Kind, LayoutName, Signature, StateSpec, TensorSpec, cache_shape
from voxport.model.component import PROMPT_ROWS, Component, Inputs, random_ids
from voxport.model.voxtral_realtime.config import (
    FLUSH_TOKENS,
    KERNEL,
    LOG_MEL_FLOOR,
    Options,
    VoxtralRealtimeConfig,
)

MAX_ENCODER_TOKENS = 32  # of one encoder call: 2.56 s; a longer recording is several calls
MEL_RANGE = (-0.625, 1.6)  # of a log-mel value, digital silence to full scale


def constants(config: VoxtralRealtimeConfig, options: Options) -> Json:
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
        "left_pad_tokens": config.schedule.left_pad_tokens,
        "flush_tokens": FLUSH_TOKENS,
        "bos_id": config.schedule.bos_id,
        "eos_id": config.schedule.eos_id,
        "pad_id": config.schedule.pad_id,
        "word_id": config.schedule.word_id,
        "first_text_id": config.schedule.first_text_id,
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
    encode_chunk = Component(
        name="encode_chunk",
        graph="encoder",
        signature=_encoder_signature(config, 1, layout),
        example=partial(_random_mel, config, T=1),
        purpose="the next 80 ms of a live stream, in the same way",
    )
    return (
        Component(
            name="embed_tokens",
            graph="embed_tokens",
            signature=Signature(
                inputs=(TensorSpec("ids", "int64", (1, "S"), Kind.INDEX),),
                outputs=(TensorSpec("embeddings", "float32", (1, "S", config.dim), Kind.EMBEDDING),),
                dims={"S": (1, cache_length)},
            ),
            example=partial(random_ids, config.vocab_size),
            purpose="rows of the token table, which are added to the audio's",
            batched=True,
            rows_per_call=PROMPT_ROWS,
        ),
        Component(
            name="audio_encoder",
            graph="encoder",
            signature=_encoder_signature(config, "T", layout),
            example=partial(_random_mel, config),
            purpose="the next log-mel frames of a recording to embeddings; "
            "`position` counts the tokens encoded before",
        ),
        *((encode_chunk,) if options.streaming else ()),
        *_decoder_components(config, options, min(config.sliding_window, cache_length), layout),
    )


def _decoder_components(
    config: VoxtralRealtimeConfig, options: Options, window: int, layout: LayoutName
) -> tuple[Component, ...]:
    # Runtimes hold memory for as many rows as a call may have, so the bound is the longest prompt.
    prompt = 1 + config.schedule.left_pad_tokens + max(options.delays(config))
    signature = partial(_decoder_signature, config, window, layout)
    return (
        Component(
            name="prefill",
            graph="decoder",
            signature=signature("S", {"S": (1, min(window, prompt))}),
            example=partial(_random_embeddings, config, options),
            purpose="embeddings of the prompt, or of its first rows, written to the cache from `position` "
            "on; the rows of the cache bound them",
        ),
        Component(
            name="decode_step",
            graph="decoder",
            signature=signature(1, {}),
            example=partial(_random_embeddings, config, options, S=1),
            purpose="sum of the embeddings of a token and of its 80 ms of audio; "
            "`position` may exceed the cache's rows",
            batched=True,
        ),
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


def _decoder_signature(
    config: VoxtralRealtimeConfig,
    window: int,
    layout: LayoutName,
    rows: int | str,
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


def _random_mel(config: VoxtralRealtimeConfig, seed: int, T: int = 3) -> Inputs:
    shape = (1, T, config.mel_frames_per_token, config.audio.num_mel_bins)
    mel = np.random.default_rng(seed).uniform(*MEL_RANGE, shape).astype(np.float32)
    return {"mel": mel, "position": np.array([0])}


def _random_embeddings(config: VoxtralRealtimeConfig, options: Options, seed: int, S: int = 8) -> Inputs:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((1, S, config.dim), dtype=np.float32)
    delay = seed % len(options.delays_ms)  # seeds that follow each other cover every delay
    return {"embeddings": values, "position": np.array([0]), "delay": np.array([delay])}


CALLS = """\
## Order of calls

Audio is mono, {rate} Hz, float32 in [-1, 1]. One token is {samples} samples. d is the delay in tokens
({delays}).

1. Pad with silence: {left} * {samples} zeros before the audio; zeros after it up to a multiple of {samples},
   and then (d + {behind}) * {samples} more.
2. Compute the log-mel spectrogram: {frames} frames per token, 0 to {frames} N - 1 for N tokens of padded
   audio.
   - Frame k is centred at sample {hop} k. Zeros extend both ends.
   - Multiply by a periodic Hann window of {window} samples; take |DFT|^2 of {bins} bins.
   - Apply {mels} triangular filters between {mels_2} points equally spaced from 0 to {nyquist} Hz on Slaney's
     mel scale (3 f / 200 below 1000 Hz, 15 + 27 ln(f / 1000) / ln 6.4 above), each times 2 / (its width in
     Hz).
   - Take log10 of at least 1e-10, raise it to at least {least}, then compute (x + 4) / 4.
3. Call `audio_encoder(mel, position)` with {frames} frames per token and as many tokens as the bounds of T
   allow. For one token call `encode_chunk`, if the bundle has it. `position` counts the tokens encoded
   before. The embeddings belong to positions 0, 1, 2 ... of the decoder.
4. The prompt has {left} + d + 1 ids: {bos} once, then the id {pad} {left} + d times. Call
   `prefill(embed_tokens(ids) + embeddings of positions 0 ... {left} + d, position=0, delay)`. `delay` is an
   index into the delays above. If the bound of S is less, call `decode_step` for the other rows. The argmax
   of the last `logits` is the first token.
5. For each position after the prompt call `decode_step(embed_tokens(previous token) + embedding, position,
   delay)` and take the argmax, up to the last embedding. {eos} does not end the transcript.
6. Text: an id from {text} on is bytes: `token_bytes`, in base64, of the entry of `vocab` in `tekken.json`
   with `rank` id - {text}. Join bytes before decoding them as UTF-8: a character may span tokens. All other
   ids have no text; {word} begins a word, and {pad} means that no text is due. The first token is due after
   {ms} ms of audio, each further one {ms} ms later.

A new recording starts at position 0. States need not be cleared if they are finite. The caches are sliding
windows: `position` may grow up to 16,773,119 in the decoder and 4,193,279 in the encoder (93 hours).
"""


def calls(constants: Json, options: Json) -> str:
    """The text for a bundle with these constants of its manifest."""
    pairs = zip(constants["delays_ms"], constants["delays"], strict=True)
    return CALLS.format(
        rate=constants["sample_rate"],
        samples=constants["samples_per_token"],
        delays=", ".join(f"{index}: {ms} ms, d = {tokens}" for index, (ms, tokens) in enumerate(pairs)),
        left=constants["left_pad_tokens"],
        behind=constants["flush_tokens"] + 1,
        hop=constants["hop_length"],
        window=constants["window_size"],
        bins=constants["window_size"] // 2 + 1,
        mels=constants["n_mels"],
        mels_2=constants["n_mels"] + 2,
        nyquist=constants["sample_rate"] // 2,
        least=constants["log_mel_least"],
        frames=constants["samples_per_token"] // constants["hop_length"],
        bos=constants["bos_id"],
        pad=constants["pad_id"],
        eos=constants["eos_id"],
        word=constants["word_id"],
        text=constants["first_text_id"],
        ms=1000 * constants["samples_per_token"] // constants["sample_rate"],
    )
