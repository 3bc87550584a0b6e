"""The graphs of Qwen3-TTS. Every bundle has them; bundles of Base models also have two encoders."""

from functools import partial

import numpy as np
from torch import nn

from voxport.bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec, cache_shape
from voxport.model.graph import (
    POSITION,
    PROMPT_ROWS,
    Component,
    GraphSpec,
    Inputs,
    ModelSpec,
    codec_components,
    decoder_components,
    kv_caches,
    random_embeddings,
    token_table,
)
from voxport.model.layers.qwen_block import QwenStack
from voxport.model.qwen3_tts.codec.decoder import CodecDecoder
from voxport.model.qwen3_tts.codec.encoder import CodecEncoder
from voxport.model.qwen3_tts.codec.weights import codec_contexts
from voxport.model.qwen3_tts.config import CONTROL_IDS, CodecDecoderConfig, Options, Qwen3TTSConfig
from voxport.model.qwen3_tts.modules import (
    CodeEmbedding,
    CodePredictor,
    Qwen3TTSWeights,
    TextEmbedding,
)
from voxport.model.qwen3_tts.speaker import SpeakerEncoder

MAX_CODEC_FRAMES = 64  # one call; a ring of window + 63 rows holds them
PLANNED_CODEC_FRAMES = 16  # a target that plans memory would hold 3.7 MB more for each further frame
MAX_REFERENCE_FRAMES = 375  # 30 s of a recording
MEL_FRAMES = (5, 2813)  # a recording: at least what is reflected at its ends, at most 30 s
TALKER, PREDICTOR, SPEECH = "talker.model", "talker.code_predictor", "speech_tokenizer"
PROJECTION = "talker.text_projection"
CODE_TABLE, OTHER_TABLES = f"{TALKER}.codec_embedding", f"{PREDICTOR}.model.codec_embedding"
TALKER_WEIGHTS = (f"{TALKER}.layers", f"{TALKER}.norm", "talker.codec_head")
# What each step of the predictor reads; a head and a table are read by one of them.
STEP_WEIGHTS = tuple(
    f"{PREDICTOR}.{part}" for part in ("model.layers", "model.norm", "small_to_mtp_projection")
)
Graph = GraphSpec[Qwen3TTSWeights, Qwen3TTSConfig, Options]
Model = ModelSpec[Qwen3TTSConfig, Options]


class TextTable(Graph):
    """The text table with its projection."""

    name = "embed_text"
    weights = (f"{TALKER}.text_embedding", PROJECTION)
    keep_float = (f"{PROJECTION}.*",)

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        return TextEmbedding(weights.talker)

    def components(self, model: Model) -> tuple[Component, ...]:
        talker = model.config.talker_config
        purpose = "rows of the text table, projected to the width of the talker"
        return (token_table(self, model, talker.text_vocab_size, talker.hidden_size, purpose),)


class CodeTables(Graph):
    """The tables of all code books."""

    name = "embed_codes"
    weights = (CODE_TABLE, OTHER_TABLES)

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        return CodeEmbedding(weights.talker)

    def components(self, model: Model) -> tuple[Component, ...]:
        width, books = model.config.talker_config.hidden_size, model.config.talker_config.num_code_groups
        signature = Signature(
            inputs=(TensorSpec("codes", "int64", (1, "T", books), Kind.INDEX),),
            outputs=(TensorSpec("embeddings", "float32", (1, "T", width), Kind.EMBEDDING),),
            dims={"T": (1, model.cache_length)},
        )

        def example(seed: int, T: int = 4) -> Inputs:
            return {"codes": _random_codes(model.config, seed, T)}

        purpose = "the sum of one row per code of a frame; a code below 0 adds nothing"
        return (
            Component(
                self.name,
                self.name,
                signature,
                example,
                purpose,
                batched=True,
                rows_per_call=PROMPT_ROWS,
            ),
        )


class TalkerGraph(Graph):
    """The talker, which gives code 0 of a frame."""

    name = "talker"
    weights = TALKER_WEIGHTS

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        talker, config = weights.talker, model.config.talker_config
        return QwenStack(talker.model, talker.codec_head, config, model.cache_length)

    def components(self, model: Model) -> tuple[Component, ...]:
        talker, length = model.config.talker_config, model.cache_length
        shape = cache_shape(model.layout, length, talker.num_key_value_heads, talker.head_dim)
        return decoder_components(
            self.name,
            talker.hidden_size,
            length,
            outputs=(TensorSpec("logits", "float32", (1, talker.vocab_size), Kind.LOGITS),),
            states=kv_caches(talker.num_hidden_layers, shape, CacheSpec(model.layout)),
            example=partial(random_embeddings, talker.hidden_size),
            purposes=(
                "embeddings of the prompt, written to the cache from `position` on",
                "embedding of the last frame and its text, written to the cache at `position`",
            ),
            rows_per_call=PROMPT_ROWS,
        )


class CodePredictorGraph(Graph):
    """The code predictor, which gives the other codes of a frame, one after another."""

    name = "code_predictor"
    weights = (PREDICTOR, CODE_TABLE)
    min_bits = 8
    float16 = False  # public ports in half precision saturate, or give NaN

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        return CodePredictor(weights.talker, model.config.talker_config.code_predictor_config)

    def reads(self, config: Qwen3TTSConfig) -> dict[str, int]:
        return dict.fromkeys(STEP_WEIGHTS, config.talker_config.num_code_groups - 1)

    def components(self, model: Model) -> tuple[Component, ...]:
        talker = model.config.talker_config
        width, books = talker.hidden_size, talker.num_code_groups
        logits = (1, books - 1, talker.code_predictor_config.vocab_size)

        def example(seed: int) -> Inputs:
            rng = np.random.default_rng(seed)
            # given codes: a drawn code that differs changes the rest
            codes = _random_codes(model.config, seed, 1)[0]
            return {
                "hidden": rng.standard_normal((1, 1, width), dtype=np.float32),
                "codes": codes,
                "noise": rng.gumbel(size=logits).astype(np.float32),
                "temperature": np.array([0.9], np.float32),
                "top_k": np.array([50]),
                "top_p": np.array([1.0], np.float32),
            }

        signature = Signature(
            inputs=(
                TensorSpec("hidden", "float32", (1, 1, width), Kind.HIDDEN),
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
        )
        purpose = "the other codes of a frame, drawn one after another; codes that are not negative are kept"
        return (Component(self.name, self.name, signature, example, purpose, batched=True),)


class CodecGraph(Graph):
    """The decoder of the speech tokenizer."""

    name = "codec"
    weights = (f"{SPEECH}.decoder",)
    keep_float = (f"{SPEECH}.*",)

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        return CodecDecoder(weights.speech_tokenizer.decoder, model.config.codec.decoder_config)

    def components(self, model: Model) -> tuple[Component, ...]:
        codec, books = model.config.codec.decoder_config, model.config.talker_config.num_code_groups
        signature = Signature(
            inputs=(
                TensorSpec("codes", "int64", (1, "T", books), Kind.INDEX),
                POSITION,
            ),
            outputs=(TensorSpec("audio", "float32", (1, f"{codec.samples_per_frame}*T"), Kind.AUDIO),),
            states=self._states(codec, model),
            dims={"T": (1, MAX_CODEC_FRAMES)},
        )

        def example(seed: int, T: int = 1) -> Inputs:
            codes = np.random.default_rng(seed).integers(0, codec.codebook_size, (1, T, books))
            return {"codes": codes, "position": np.array([0])}

        return codec_components(self.name, signature, example, PLANNED_CODEC_FRAMES)

    def _states(self, config: CodecDecoderConfig, model: Model) -> tuple[StateSpec, ...]:
        """In the order of the arguments of `CodecDecoder.forward`."""
        rows = config.sliding_window - 1 + MAX_CODEC_FRAMES
        shape = cache_shape(model.layout, rows, config.num_key_value_heads, config.head_dim)
        cache = CacheSpec(model.layout, config.sliding_window, 1, MAX_CODEC_FRAMES)
        return kv_caches(config.num_hidden_layers, shape, cache, prefix="codec_") + tuple(
            StateSpec(name, "float32", (1, channels, columns))
            for name, channels, columns in codec_contexts(config)
        )


class SpeechEncoderGraph(Graph):
    """The encoder of the speech tokenizer."""

    name = "speech_encoder"
    weights = (f"{SPEECH}.encoder",)
    keep_float = (f"{SPEECH}.*",)

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        encoder, config = weights.speech_tokenizer.encoder, model.config.codec.encoder_config
        return CodecEncoder(encoder, config, MAX_REFERENCE_FRAMES)

    def components(self, model: Model) -> tuple[Component, ...]:
        codec = model.config.codec
        samples, books = codec.encode_downsample_rate, codec.encoder_valid_num_quantizers

        def example(seed: int, T: int = 2) -> Inputs:
            audio = 0.1 * np.random.default_rng(seed).standard_normal((1, T, samples), dtype=np.float32)
            return {"audio": audio, "length": np.array([T * samples - 700])}

        signature = Signature(
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
        )
        purpose = "a recording in frames to codes; it has `length` samples, and what follows has no effect"
        return (Component(self.name, self.name, signature, example, purpose),)


class SpeakerEncoderGraph(Graph):
    """The speaker encoder."""

    name = "speaker_encoder"
    weights = ("speaker_encoder",)
    keep_float = ("speaker_encoder.*",)

    def build(self, weights: Qwen3TTSWeights, model: Model) -> nn.Module:
        return SpeakerEncoder(weights.speaker_encoder)

    def components(self, model: Model) -> tuple[Component, ...]:
        speaker = model.config.speaker_encoder_config
        assert speaker  # as every Base model has

        def example(seed: int, F: int = 8) -> Inputs:
            shape = (1, F, speaker.mel_dim)
            return {"mel": np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)}

        signature = Signature(
            inputs=(TensorSpec("mel", "float32", (1, "F", speaker.mel_dim), Kind.HIDDEN),),
            outputs=(TensorSpec("embedding", "float32", (1, speaker.enc_dim), Kind.EMBEDDING),),
            dims={"F": MEL_FRAMES},
        )
        purpose = "the log-mel spectrogram of a recording to the vector of its speaker"
        return (Component(self.name, self.name, signature, example, purpose),)


GRAPHS = (TextTable(), CodeTables(), TalkerGraph(), CodePredictorGraph(), CodecGraph())
ENCODERS = (SpeechEncoderGraph(), SpeakerEncoderGraph())


def _random_codes(config: Qwen3TTSConfig, seed: int, frames: int) -> np.ndarray:
    talker, rng = config.talker_config, np.random.default_rng(seed)
    first = rng.integers(0, talker.vocab_size - CONTROL_IDS, (1, frames, 1))
    shape = (1, frames, talker.num_code_groups - 1)
    return np.concatenate((first, rng.integers(0, talker.code_predictor_config.vocab_size, shape)), axis=-1)
