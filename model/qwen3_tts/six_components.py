"""The components of `--split six`: names, inputs and outputs as in speech-swift's Core ML models."""

import numpy as np

from bundle.spec import Kind, Signature, StateSpec, TensorSpec
from model.component import Component
from model.qwen3_tts.config import BlockConfig, Qwen3TTSConfig

CACHE_ROWS = 256  # by default
DECODER_FRAMES = 125  # of one call of the speech decoder: 10 s
WINDOW_CONTEXT = 25  # frames that longer speech repeats, as in the published package
HIDDEN_ROW = -1e4  # of `key_padding_mask`
Inputs = dict[str, np.ndarray]
GRAPHS = {  # component: its graph, which names the package
    "text_projector": "TextProjector",
    "code_embedder": "CodeEmbedder",
    "multi_code_embedder": "MultiCodeEmbedder",
    "code_decoder": "CodeDecoder",
    "multi_code_decoder": "MultiCodeDecoder",
    "speech_decoder": "SpeechDecoder",
}


def six_components(config: Qwen3TTSConfig, cache_length: int) -> tuple[Component, ...]:
    """All but the encoders. The caches of the talker have `cache_length` rows."""
    talker, predictor = config.talker_config, config.talker_config.code_predictor_config
    books, others = talker.num_code_groups, talker.num_code_groups - 1
    logits = TensorSpec("logits", "float32", (1, 1, talker.vocab_size), Kind.LOGITS)
    all_logits = TensorSpec("all_logits", "float32", (1, others, predictor.vocab_size), Kind.LOGITS)
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
            others * predictor.vocab_size,
            f"the row of code g > 0 of a frame; its id is {predictor.vocab_size} * (g - 1) + code",
        ),
        _decoder(
            "code_decoder",
            talker,
            talker.hidden_size,
            cache_length,
            (logits,),
            "one position of the talker; `cache_length` is the position",
        ),
        _decoder(
            "multi_code_decoder",
            predictor,
            talker.hidden_size,
            books,
            (all_logits,),
            "one position of the code predictor; row p - 1 of the logits follows position p",
            prefix="multi_",
        ),
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


def _decoder(
    name: str,
    config: BlockConfig,
    input_width: int,
    rows: int,
    outputs: tuple[TensorSpec, ...],
    purpose: str,
    prefix: str = "",
) -> Component:
    size = config.num_hidden_layers * config.num_key_value_heads * config.head_dim

    def example(seed: int) -> Inputs:
        values = np.random.default_rng(seed).standard_normal((1, input_width, 1, 1), dtype=np.float32)
        position, at = seed % rows, np.arange(rows)[None]
        return {
            "input_embeds": values,
            "cache_length": np.array([position], np.int32),
            "key_padding_mask": np.where(at <= position, 0, HIDDEN_ROW).astype(np.float32),
            "kv_cache_update_mask": (at == position).astype(np.float32),
        }

    return Component(
        name=name,
        graph=GRAPHS[name],
        signature=Signature(
            inputs=(
                TensorSpec("input_embeds", "float32", (1, input_width, 1, 1), Kind.EMBEDDING),
                TensorSpec("cache_length", "int32", (1,), Kind.INDEX),
                TensorSpec("key_padding_mask", "float32", (1, rows), Kind.INDEX),
                TensorSpec("kv_cache_update_mask", "float32", (1, rows), Kind.INDEX),
            ),
            outputs=(
                *outputs,
                TensorSpec("hidden_states", "float32", (1, config.hidden_size, 1, 1), Kind.HIDDEN),
            ),
            states=tuple(
                StateSpec(f"{prefix}{kind}_cache", "float32", (1, size, 1, rows)) for kind in ("key", "value")
            ),
        ),
        example=example,
        purpose=purpose,
    )


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
