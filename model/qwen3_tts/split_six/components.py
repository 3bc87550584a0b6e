"""The components of `--split six`: names, inputs and outputs as in speech-swift's Core ML models."""

from functools import partial

import numpy as np

from voxport.bundle.spec import MASKED_SCORE, Kind, Signature, StateSpec, TensorSpec
from voxport.model.component import Component, Inputs
from voxport.model.qwen3_tts.config import BlockConfig, Qwen3TTSConfig

CACHE_ROWS = 256  # by default
DECODER_FRAMES = 125  # of one call of the speech decoder: 10 s
WINDOW_CONTEXT = 25  # frames that longer speech repeats, as in the published package
GRAPHS = {  # component: its graph, which names the package
    "text_projector": "TextProjector",
    "code_embedder": "CodeEmbedder",
    "multi_code_embedder": "MultiCodeEmbedder",
    "code_decoder": "CodeDecoder",
    "multi_code_decoder": "MultiCodeDecoder",
    "speech_decoder": "SpeechDecoder",
}


def split_components(config: Qwen3TTSConfig, cache_length: int) -> tuple[Component, ...]:
    """All but the encoders. The caches of the talker have `cache_length` rows."""
    talker, predictor = config.talker_config, config.talker_config.code_predictor_config
    return (
        _embedder(
            "text_projector",
            talker.hidden_size,
            talker.text_vocab_size,
            "the row of an id of text, projected to the width of the talker",
        ),
        _embedder(
            "code_embedder",
            talker.hidden_size,
            talker.vocab_size,
            "the row of an id of the talker's own vocabulary: code 0 of a frame, a language or a speaker",
        ),
        _embedder(
            "multi_code_embedder",
            talker.hidden_size,
            (talker.num_code_groups - 1) * predictor.vocab_size,
            f"the row of code g > 0 of a frame; its id is {predictor.vocab_size} * (g - 1) + code",
        ),
        _code_decoder(config, cache_length),
        _multi_code_decoder(config),
        _speech_decoder(config),
    )


def _embedder(name: str, width: int, ids: int, purpose: str) -> Component:
    def example(seed: int) -> Inputs:
        return {"input_ids": np.random.default_rng(seed).integers(0, ids, 1).astype(np.int32)}

    return Component(
        name=name,
        graph=GRAPHS[name],
        signature=Signature(
            inputs=(TensorSpec("input_ids", "int32", (1,), Kind.INDEX),),
            outputs=(TensorSpec("input_embeds", "float32", (1, width, 1, 1), Kind.EMBEDDING),),
        ),
        example=example,
        purpose=purpose,
    )


def _code_decoder(config: Qwen3TTSConfig, cache_length: int) -> Component:
    talker = config.talker_config
    states = _caches(talker, ("key_cache", "value_cache"), cache_length)
    logits = TensorSpec("logits", "float32", (1, 1, talker.vocab_size), Kind.LOGITS)
    return Component(
        name="code_decoder",
        graph=GRAPHS["code_decoder"],
        signature=_decoder_signature(talker.hidden_size, talker.hidden_size, logits, states),
        example=partial(_decoder_inputs, talker.hidden_size, cache_length),
        purpose="one position of the talker; `cache_length` is the position",
    )


def _multi_code_decoder(config: Qwen3TTSConfig) -> Component:
    talker, predictor = config.talker_config, config.talker_config.code_predictor_config
    books = talker.num_code_groups
    states = _caches(predictor, ("multi_key_cache", "multi_value_cache"), books)
    logits = TensorSpec("all_logits", "float32", (1, books - 1, predictor.vocab_size), Kind.LOGITS)
    return Component(
        name="multi_code_decoder",
        graph=GRAPHS["multi_code_decoder"],
        signature=_decoder_signature(talker.hidden_size, predictor.hidden_size, logits, states),
        example=partial(_decoder_inputs, talker.hidden_size, books),
        purpose="one position of the code predictor; row p - 1 of the logits follows position p",
    )


def _caches(config: BlockConfig, names: tuple[str, ...], rows: int) -> tuple[StateSpec, ...]:
    size = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return tuple(StateSpec(name, "float32", (1, size, 1, rows)) for name in names)


def _decoder_signature(
    input_width: int, hidden_width: int, logits: TensorSpec, states: tuple[StateSpec, ...]
) -> Signature:
    """The masks have a value for each row of the caches."""
    rows = states[0].shape[-1]
    return Signature(
        inputs=(
            TensorSpec("input_embeds", "float32", (1, input_width, 1, 1), Kind.EMBEDDING),
            TensorSpec("cache_length", "int32", (1,), Kind.INDEX),
            TensorSpec("key_padding_mask", "float32", (1, rows), Kind.INDEX),
            TensorSpec("kv_cache_update_mask", "float32", (1, rows), Kind.INDEX),
        ),
        outputs=(logits, TensorSpec("hidden_states", "float32", (1, hidden_width, 1, 1), Kind.HIDDEN)),
        states=states,
    )


def _decoder_inputs(width: int, rows: int, seed: int) -> Inputs:
    values = np.random.default_rng(seed).standard_normal((1, width, 1, 1), dtype=np.float32)
    position, at = seed % rows, np.arange(rows)[None]
    return {
        "input_embeds": values,
        "cache_length": np.array([position], np.int32),
        "key_padding_mask": np.where(at <= position, 0, MASKED_SCORE).astype(np.float32),
        "kv_cache_update_mask": (at == position).astype(np.float32),
    }


def _speech_decoder(config: Qwen3TTSConfig) -> Component:
    codec, books = config.codec.decoder_config, config.talker_config.num_code_groups
    shape = (1, books, DECODER_FRAMES)

    def example(seed: int) -> Inputs:
        codes = np.random.default_rng(seed).integers(0, codec.codebook_size, shape)
        return {"audio_codes": codes.astype(np.int32)}

    samples = DECODER_FRAMES * codec.samples_per_frame
    return Component(
        name="speech_decoder",
        graph=GRAPHS["speech_decoder"],
        signature=Signature(
            inputs=(TensorSpec("audio_codes", "int32", shape, Kind.INDEX),),
            outputs=(TensorSpec("audio", "float32", (1, samples), Kind.AUDIO),),
        ),
        example=example,
        purpose=f"{DECODER_FRAMES} frames to samples; fill up shorter speech, and cut off the rest",
    )
