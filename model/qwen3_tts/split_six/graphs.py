"""The graphs of `--split six`: names, inputs and outputs as in speech-swift's Core ML models."""

import numpy as np
from torch import nn

from voxport.bundle.spec import MASKED_SCORE, Kind, Signature, StateSpec, TensorSpec
from voxport.model.config import QwenBlockConfig
from voxport.model.graph import Component, Inputs
from voxport.model.qwen3_tts.graphs import (
    CODE_TABLE,
    OTHER_TABLES,
    PREDICTOR,
    STEP_WEIGHTS,
    TALKER_WEIGHTS,
    CodecGraph,
    CodePredictorGraph,
    Graph,
    Model,
    TextTable,
)
from voxport.model.qwen3_tts.modules import Qwen3TTSWeights
from voxport.model.qwen3_tts.split_six.modules import (
    CodeDecoder,
    CodeEmbedder,
    MultiCodeDecoder,
    MultiCodeEmbedder,
    SpeechDecoder,
    TextProjector,
)

CACHE_ROWS = 256  # by default
DECODER_FRAMES = 125  # one call of the speech decoder: 10 s


class TextProjectorGraph(TextTable):
    name = "TextProjector"

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        return TextProjector(weights.talker)

    def components(self, model: Model) -> tuple[Component, ...]:
        purpose = "the row of an id of text, projected to the width of the talker"
        return _embedder(self, "text_projector", model, model.config.talker_config.text_vocab_size, purpose)


class CodeEmbedderGraph(Graph):
    name = "CodeEmbedder"
    weights = (CODE_TABLE,)

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        return CodeEmbedder(weights.talker)

    def components(self, model: Model) -> tuple[Component, ...]:
        purpose = (
            "the row of an id of the talker's own vocabulary: code 0 of a frame, a language or a speaker"
        )
        return _embedder(self, "code_embedder", model, model.config.talker_config.vocab_size, purpose)


class MultiCodeEmbedderGraph(Graph):
    name = "MultiCodeEmbedder"
    weights = (OTHER_TABLES,)

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        return MultiCodeEmbedder(weights.talker, model.config.talker_config.code_predictor_config.vocab_size)

    def components(self, model: Model) -> tuple[Component, ...]:
        talker = model.config.talker_config
        codes = talker.code_predictor_config.vocab_size
        purpose = f"the row of code g > 0 of a frame; its id is {codes} * (g - 1) + code"
        return _embedder(self, "multi_code_embedder", model, (talker.num_code_groups - 1) * codes, purpose)


class CodeDecoderGraph(Graph):
    name = "CodeDecoder"
    weights = TALKER_WEIGHTS

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        return CodeDecoder(weights.talker, model.config.talker_config, model.cache_length)

    def components(self, model: Model) -> tuple[Component, ...]:
        talker = model.config.talker_config
        logits = TensorSpec("logits", "float32", (1, 1, talker.vocab_size), Kind.LOGITS)
        states = _caches(talker, ("key_cache", "value_cache"), model.cache_length)
        purpose = "one position of the talker; `cache_length` is the position"
        return _decoder(self, "code_decoder", talker.hidden_size, talker.hidden_size, logits, states, purpose)


class MultiCodeDecoderGraph(Graph):
    name = "MultiCodeDecoder"
    weights = (*STEP_WEIGHTS, f"{PREDICTOR}.lm_head")
    min_bits = CodePredictorGraph.min_bits
    float16 = CodePredictorGraph.float16

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        return MultiCodeDecoder(weights.talker, model.config.talker_config.code_predictor_config)

    def components(self, model: Model) -> tuple[Component, ...]:
        talker, predictor = model.config.talker_config, model.config.talker_config.code_predictor_config
        books = talker.num_code_groups
        logits = TensorSpec("all_logits", "float32", (1, books - 1, predictor.vocab_size), Kind.LOGITS)
        states = _caches(predictor, ("multi_key_cache", "multi_value_cache"), books)
        purpose = "one position of the code predictor; row p - 1 of the logits follows position p"
        widths = talker.hidden_size, predictor.hidden_size
        return _decoder(self, "multi_code_decoder", *widths, logits, states, purpose)


class SpeechDecoderGraph(CodecGraph):
    name = "SpeechDecoder"

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        return SpeechDecoder(weights.speech_tokenizer.decoder, model.config.codec.decoder_config)

    def components(self, model: Model) -> tuple[Component, ...]:
        codec, books = model.config.codec.decoder_config, model.config.talker_config.num_code_groups
        shape = (1, books, DECODER_FRAMES)

        def example(seed: int) -> Inputs:
            codes = np.random.default_rng(seed).integers(0, codec.codebook_size, shape)
            return {"audio_codes": codes.astype(np.int32)}

        samples = DECODER_FRAMES * codec.samples_per_frame
        signature = Signature(
            inputs=(TensorSpec("audio_codes", "int32", shape, Kind.INDEX),),
            outputs=(TensorSpec("audio", "float32", (1, samples), Kind.AUDIO),),
        )
        purpose = f"{DECODER_FRAMES} frames to samples; fill up shorter speech, and cut off the rest"
        return (Component("speech_decoder", self.name, signature, example, purpose),)


GRAPHS = (
    TextProjectorGraph(),
    CodeEmbedderGraph(),
    MultiCodeEmbedderGraph(),
    CodeDecoderGraph(),
    MultiCodeDecoderGraph(),
    SpeechDecoderGraph(),
)


def _embedder(spec: Graph, name: str, model: Model, ids: int, purpose: str) -> tuple[Component, ...]:
    def example(seed: int) -> Inputs:
        return {"input_ids": np.random.default_rng(seed).integers(0, ids, 1).astype(np.int32)}

    width = model.config.talker_config.hidden_size
    signature = Signature(
        inputs=(TensorSpec("input_ids", "int32", (1,), Kind.INDEX),),
        outputs=(TensorSpec("input_embeds", "float32", (1, width, 1, 1), Kind.EMBEDDING),),
    )
    return (Component(name, spec.name, signature, example, purpose),)


def _caches(config: QwenBlockConfig, names: tuple[str, ...], rows: int) -> tuple[StateSpec, ...]:
    size = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return tuple(StateSpec(name, "float32", (1, size, 1, rows)) for name in names)


def _decoder(
    spec: Graph,
    name: str,
    width: int,
    hidden_width: int,
    logits: TensorSpec,
    states: tuple[StateSpec, ...],
    purpose: str,
) -> tuple[Component, ...]:
    """The masks have a value for each row of the caches."""
    rows = int(states[0].shape[-1])

    def example(seed: int) -> Inputs:
        values = np.random.default_rng(seed).standard_normal((1, width, 1, 1), dtype=np.float32)
        position, at = seed % rows, np.arange(rows)[None]
        return {
            "input_embeds": values,
            "cache_length": np.array([position], np.int32),
            "key_padding_mask": np.where(at <= position, 0, MASKED_SCORE).astype(np.float32),
            "kv_cache_update_mask": (at == position).astype(np.float32),
        }

    signature = Signature(
        inputs=(
            TensorSpec("input_embeds", "float32", (1, width, 1, 1), Kind.EMBEDDING),
            TensorSpec("cache_length", "int32", (1,), Kind.INDEX),
            TensorSpec("key_padding_mask", "float32", (1, rows), Kind.INDEX),
            TensorSpec("kv_cache_update_mask", "float32", (1, rows), Kind.INDEX),
        ),
        outputs=(logits, TensorSpec("hidden_states", "float32", (1, hidden_width, 1, 1), Kind.HIDDEN)),
        states=states,
    )
    return (Component(name, spec.name, signature, example, purpose),)
