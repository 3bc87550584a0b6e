"""The components of Qwen3-TTS, as data: signatures and constants."""

from functools import partial

import numpy as np

from voxport.bundle.json_types import Json
from voxport.bundle.spec import CacheSpec, Kind, LayoutName, Signature, StateSpec, TensorSpec, cache_shape
from voxport.model.component import PROMPT_ROWS, Component, Inputs, random_ids
from voxport.model.qwen3_tts.config import CONTROL_IDS, CodecDecoderConfig, Options, Qwen3TTSConfig
from voxport.model.qwen3_tts.split_six.components import split_components

MAX_CODEC_FRAMES = 64  # of one call; a ring of window + 63 rows holds them
PLANNED_CODEC_FRAMES = 16  # a target that plans memory would hold 3.7 MB more for each further frame
MAX_REFERENCE_FRAMES = 375  # 30 s of a recording
MEL_FRAMES = (5, 2813)  # of a recording: at least what is reflected at its ends, at most 30 s
KERNEL, INPUT_KERNEL = 7, 3
DILATIONS = (1, 3, 9)


def constants(config: Qwen3TTSConfig, options: Options) -> Json:
    """Everything that a runner needs besides names and shapes. Speakers and languages are in lower case, as
    the published package compares them.
    """
    talker = config.talker_config
    ids = {name: getattr(talker, name) for name in type(talker).model_fields if name.startswith("codec_")}
    return ids | {
        "sample_rate": config.codec.output_sample_rate,
        "samples_per_frame": config.codec.decode_upsample_rate,
        "dim": talker.hidden_size,
        "n_codebooks": talker.num_code_groups,
        "vocab_size": talker.vocab_size,
        "text_vocab_size": talker.text_vocab_size,
        "first_codes": talker.vocab_size - CONTROL_IDS,
        "other_codes": talker.code_predictor_config.vocab_size,
        "im_start_id": config.im_start_token_id,
        "im_end_id": config.im_end_token_id,
        "assistant_id": config.assistant_token_id,
        "tts_pad_id": config.tts_pad_token_id,
        "tts_bos_id": config.tts_bos_token_id,
        "tts_eos_id": config.tts_eos_token_id,
        "kind": config.tts_model_type,
        "size": config.tts_model_size,
        "codec_language_id": {name.lower(): each for name, each in talker.codec_language_id.items()},
        "speakers": {name.lower(): talker.speaker_id(name) for name in talker.spk_id},
        "dialects": {name.lower(): key.lower() for name, key in talker.spk_is_dialect.items() if key},
        "sampling_defaults": config.generation.sampling(),
        "max_frames": config.generation.max_frames,
    }


def components(
    config: Qwen3TTSConfig, options: Options, cache_length: int, layout: LayoutName = "BSHD"
) -> tuple[Component, ...]:
    """All components. The caches of the talker have `cache_length` rows in `layout`."""
    encoders = _encoders(config) if config.has_encoders else ()
    if options.is_split_six:
        return (*split_components(config, cache_length), *encoders)
    return (
        *_tables(config, cache_length),
        *_talker(config, cache_length, layout),
        _code_predictor(config),
        *_codec(config, layout),
        *encoders,
    )


def _tables(config: Qwen3TTSConfig, cache_length: int) -> tuple[Component, ...]:
    width = config.talker_config.hidden_size
    books = config.talker_config.num_code_groups
    return (
        Component(
            name="embed_text",
            graph="embed_text",
            signature=Signature(
                inputs=(TensorSpec("ids", "int64", (1, "S"), Kind.INDEX),),
                outputs=(TensorSpec("embeddings", "float32", (1, "S", width), Kind.EMBEDDING),),
                dims={"S": (1, cache_length)},
            ),
            example=partial(random_ids, config.talker_config.text_vocab_size),
            purpose="rows of the text table, projected to the width of the talker",
            rows_per_call=PROMPT_ROWS,
        ),
        Component(
            name="embed_codes",
            graph="embed_codes",
            signature=Signature(
                inputs=(TensorSpec("codes", "int64", (1, "T", books), Kind.INDEX),),
                outputs=(TensorSpec("embeddings", "float32", (1, "T", width), Kind.EMBEDDING),),
                dims={"T": (1, cache_length)},
            ),
            example=lambda seed, T=4: {"codes": _random_codes(config, seed, T)},
            purpose="the sum of one row per code of a frame; a code below 0 adds nothing",
            batched=True,
            rows_per_call=PROMPT_ROWS,
        ),
    )


def _talker(config: Qwen3TTSConfig, cache_length: int, layout: LayoutName) -> tuple[Component, ...]:
    talker = partial(_talker_signature, config, cache_length, layout)
    return (
        Component(
            name="prefill",
            graph="talker",
            signature=talker("S"),
            example=partial(_random_embeddings, config),
            purpose="embeddings of the prompt, written to the cache from `position` on",
            rows_per_call=PROMPT_ROWS,
        ),
        Component(
            name="decode_step",
            graph="talker",
            signature=talker(1),
            example=partial(_random_embeddings, config, S=1),
            purpose="embedding of the last frame and its text, written to the cache at `position`",
            batched=True,
        ),
    )


def _talker_signature(
    config: Qwen3TTSConfig, cache_length: int, layout: LayoutName, rows: int | str
) -> Signature:
    talker = config.talker_config
    shape = cache_shape(layout, cache_length, talker.num_key_value_heads, talker.head_dim)
    return Signature(
        inputs=(
            TensorSpec("embeddings", "float32", (1, rows, talker.hidden_size), Kind.EMBEDDING),
            TensorSpec("position", "int64", (1,), Kind.INDEX),
        ),
        outputs=(
            TensorSpec("hidden", "float32", (1, rows, talker.hidden_size), Kind.HIDDEN),
            TensorSpec("logits", "float32", (1, talker.vocab_size), Kind.LOGITS),
        ),
        states=tuple(
            StateSpec(f"{kind}_cache_{index}", "float32", shape, CacheSpec(layout))
            for index in range(talker.num_hidden_layers)
            for kind in "kv"
        ),
        dims={"S": (1, cache_length)} if rows == "S" else {},
    )


def _code_predictor(config: Qwen3TTSConfig) -> Component:
    talker, predictor = config.talker_config, config.talker_config.code_predictor_config
    books = talker.num_code_groups
    logits = (1, books - 1, predictor.vocab_size)

    def example(seed: int) -> Inputs:
        rng = np.random.default_rng(seed)
        codes = _random_codes(config, seed, 1)[0]  # given ones: a drawn code that differs changes the rest
        return {
            "hidden": rng.standard_normal((1, 1, talker.hidden_size), dtype=np.float32),
            "codes": codes,
            "noise": rng.gumbel(size=logits).astype(np.float32),
            "temperature": np.array([0.9], np.float32),
            "top_k": np.array([50]),
            "top_p": np.array([1.0], np.float32),
        }

    return Component(
        name="code_predictor",
        graph="code_predictor",
        signature=Signature(
            inputs=(
                TensorSpec("hidden", "float32", (1, 1, talker.hidden_size), Kind.HIDDEN),
                TensorSpec("codes", "int64", (1, books), Kind.INDEX),
                TensorSpec("noise", "float32", logits, Kind.LOGITS),
                TensorSpec("temperature", "float32", (1,), Kind.LOGITS),
                TensorSpec("top_k", "int64", (1,), Kind.INDEX),
                TensorSpec("top_p", "float32", (1,), Kind.LOGITS),
            ),
            outputs=(
                TensorSpec("chosen", "int64", (1, books), Kind.CHOICE),
                TensorSpec("logits", "float32", logits, Kind.LOGITS),
            ),
        ),
        example=example,
        purpose="the other codes of a frame, drawn one after another; codes that are not negative are kept",
        batched=True,
    )


def _codec(config: Qwen3TTSConfig, layout: LayoutName) -> tuple[Component, ...]:
    codec, books = config.codec.decoder_config, config.talker_config.num_code_groups
    signature = Signature(
        inputs=(
            TensorSpec("codes", "int64", (1, "T", books), Kind.INDEX),
            TensorSpec("position", "int64", (1,), Kind.INDEX),
        ),
        outputs=(TensorSpec("audio", "float32", (1, f"{codec.samples_per_frame}*T"), Kind.AUDIO),),
        states=_codec_states(codec, layout),
        dims={"T": (1, MAX_CODEC_FRAMES)},
    )

    def example(seed: int, T: int = 1) -> Inputs:
        codes = np.random.default_rng(seed).integers(0, codec.codebook_size, (1, T, books))
        return {"codes": codes, "position": np.array([0])}

    return tuple(
        Component(name, "codec", signature, example, purpose, rows_per_call=PLANNED_CODEC_FRAMES)
        for name, purpose in (
            ("codec", "codes of an utterance to samples; `position` is 0, and the states have no effect"),
            ("codec_step", "the next frames of an utterance to samples; `position` counts the frames before"),
        )
    )


def _encoders(config: Qwen3TTSConfig) -> tuple[Component, ...]:
    codec, speaker = config.codec, config.speaker_encoder_config
    assert speaker
    samples, books = codec.encode_downsample_rate, codec.encoder_valid_num_quantizers

    def recording(seed: int, T: int = 2) -> Inputs:
        audio = 0.1 * np.random.default_rng(seed).standard_normal((1, T, samples), dtype=np.float32)
        return {"audio": audio, "length": np.array([T * samples - 700])}

    def mel(seed: int, F: int = 8) -> Inputs:
        return {"mel": np.random.default_rng(seed).standard_normal((1, F, speaker.mel_dim), dtype=np.float32)}

    return (
        Component(
            name="speech_encoder",
            graph="speech_encoder",
            signature=Signature(
                inputs=(
                    TensorSpec("audio", "float32", (1, "T", samples), Kind.AUDIO),
                    TensorSpec("length", "int64", (1,), Kind.INDEX),
                ),
                outputs=(
                    TensorSpec("codes", "int64", (1, "T", books), Kind.CHOICE),
                    TensorSpec("margins", "float32", (1, "T", books), Kind.CHOICE),
                    TensorSpec("latents", "float32", (1, "T", codec.encoder_config.hidden_size), Kind.LATENT),
                ),
                dims={"T": (1, MAX_REFERENCE_FRAMES)},
            ),
            example=recording,
            purpose="a recording in frames to codes; it has `length` samples, and what follows has no effect",
        ),
        Component(
            name="speaker_encoder",
            graph="speaker_encoder",
            signature=Signature(
                inputs=(TensorSpec("mel", "float32", (1, "F", speaker.mel_dim), Kind.HIDDEN),),
                outputs=(TensorSpec("embedding", "float32", (1, speaker.enc_dim), Kind.EMBEDDING),),
                dims={"F": MEL_FRAMES},
            ),
            example=mel,
            purpose="the log-mel spectrogram of a recording to the vector of its speaker",
        ),
    )


def _codec_states(config: CodecDecoderConfig, layout: LayoutName) -> tuple[StateSpec, ...]:
    """States of the codec between calls, in the order of the arguments of `CodecDecoder.forward`."""
    rows = config.sliding_window - 1 + MAX_CODEC_FRAMES
    shape = cache_shape(layout, rows, config.num_key_value_heads, config.head_dim)
    cache = CacheSpec(layout, config.sliding_window, 1, MAX_CODEC_FRAMES)
    caches = tuple(
        StateSpec(f"codec_{kind}_cache_{index}", "float32", shape, cache)
        for index in range(config.num_hidden_layers)
        for kind in "kv"
    )
    return caches + tuple(
        StateSpec(name, "float32", (1, channels, columns))
        for name, channels, columns in codec_contexts(config)
    )


def codec_contexts(config: CodecDecoderConfig) -> list[tuple[str, int, int]]:
    """Name, channels and columns of the states of the convolutions, in order."""
    found = [("pre_conv", config.codebook_dim, INPUT_KERNEL - 1)]
    for index in range(len(config.upsampling_ratios)):
        found.append((f"upsample_{index}", config.latent_dim, KERNEL - 1))
    found.append(("decoder_0", config.latent_dim, KERNEL - 1))
    for stage in range(len(config.upsample_rates)):
        width = config.decoder_dim >> stage
        found.append((f"decoder_{stage + 1}_upsampler", width, 1))
        found += [
            (f"decoder_{stage + 1}_{unit}", width // 2, (KERNEL - 1) * dilation)
            for unit, dilation in enumerate(DILATIONS)
        ]
    found.append(("output", config.decoder_dim >> len(config.upsample_rates), KERNEL - 1))
    return found


def _random_embeddings(config: Qwen3TTSConfig, seed: int, S: int = 8) -> Inputs:
    shape = (1, S, config.talker_config.hidden_size)
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return {"embeddings": values, "position": np.array([0])}


def _random_codes(config: Qwen3TTSConfig, seed: int, frames: int) -> np.ndarray:
    talker, rng = config.talker_config, np.random.default_rng(seed)
    first = rng.integers(0, talker.vocab_size - CONTROL_IDS, (1, frames, 1))
    shape = (1, frames, talker.num_code_groups - 1)
    return np.concatenate((first, rng.integers(0, talker.code_predictor_config.vocab_size, shape)), axis=-1)
