"""The graphs of Qwen3-ASR and of its forced aligner."""

from functools import partial

import numpy as np
from torch import nn

from voxport.bundle.constants.qwen3_asr import ALIGN, ENCODER
from voxport.bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec, cache_shape
from voxport.model.graph import (
    POSITION,
    PROMPT_ROWS,
    Component,
    GraphSpec,
    Inputs,
    ModelSpec,
    decoder_components,
    kv_caches,
    random_embeddings,
    token_table,
)
from voxport.model.layers.basic import TokenEmbedding
from voxport.model.layers.qwen_block import QwenStack
from voxport.model.qwen3_asr.config import CHUNK_FRAMES, CHUNK_ROWS, Options, Qwen3ASRConfig
from voxport.model.qwen3_asr.modules import Encoder, Qwen3ASRWeights

MEL_RANGE = (-1.5, 1.5)  # the loudest value of a recording is at most 1.5 here, and silence 2 below it
TOWER, DECODER, HEAD = "thinker.audio_tower", "thinker.model", "thinker.lm_head"
Graph = GraphSpec[Qwen3ASRWeights, Qwen3ASRConfig, Options]
Model = ModelSpec[Qwen3ASRConfig, Options]


class TokenTable(Graph):
    """The token table."""

    name = "embed_tokens"
    weights = (f"{DECODER}.embed_tokens",)

    def build(self, weights: Qwen3ASRWeights, model: Model) -> nn.Module:
        return TokenEmbedding(weights.thinker.model.embed_tokens)

    def components(self, model: Model) -> tuple[Component, ...]:
        text = model.config.thinker_config.text_config
        purpose = "rows of the token table; those of sound take the places of the ids of sound"
        return (token_table(self, model, text.vocab_size, text.hidden_size, purpose, batched=True),)


class EncoderGraph(Graph):
    """The audio encoder. A window depends on no other one, so it has no states."""

    name = "encoder"
    weights = (TOWER,)
    keep_float = (f"{TOWER}.conv2d*",)
    joinable = False  # rows of a window see each other, and calls have different lengths
    min_bits = 8  # public evidence: encoders of 4 bits make recordings loop

    def build(self, weights: Qwen3ASRWeights, model: Model) -> nn.Module:
        return Encoder(weights.thinker.audio_tower, model.config.thinker_config.audio_config)

    def components(self, model: Model) -> tuple[Component, ...]:
        config = model.config.thinker_config.audio_config
        signature = Signature(
            inputs=(
                TensorSpec("mel", "float32", (1, "C", CHUNK_FRAMES, config.num_mel_bins), Kind.HIDDEN),
                TensorSpec("frames", "int64", (1,), Kind.INDEX),
                TensorSpec("is_short", "int64", (1,), Kind.INDEX),
            ),
            outputs=(
                TensorSpec(
                    "embeddings", "float32", (1, f"{CHUNK_ROWS}*C", config.output_dim), Kind.EMBEDDING
                ),
            ),
            dims={"C": (1, config.window_chunks)},
        )
        purpose = "log-mel frames of one window, padded with zeros to whole chunks, to embeddings"
        example = partial(_random_mel, config.num_mel_bins)
        return (Component(ENCODER, self.name, signature, example, purpose, cases=3),)


class DecoderGraph(Graph):
    """The decoder of a recogniser."""

    name = "decoder"
    weights = (f"{DECODER}.layers", f"{DECODER}.norm", HEAD)
    eight_bits = (HEAD,)  # public evidence: recordings loop with a head of 4 bits

    def build(self, weights: Qwen3ASRWeights, model: Model) -> nn.Module:
        thinker, config = weights.thinker, model.config.thinker_config.text_config
        return QwenStack(thinker.model, thinker.lm_head, config, model.cache_length)

    def components(self, model: Model) -> tuple[Component, ...]:
        text = model.config.thinker_config.text_config
        return decoder_components(
            self.name,
            text.hidden_size,
            model.cache_length,
            outputs=(TensorSpec("logits", "float32", (1, text.vocab_size), Kind.LOGITS),),
            states=_caches(model),
            example=partial(random_embeddings, text.hidden_size),
            purposes=(
                "embeddings of the prompt, written to the cache from `position` on",
                "embedding of the last token, written to the cache at `position`",
            ),
            rows_per_call=PROMPT_ROWS,
        )


class AlignerGraph(Graph):
    """The decoder of an aligner, with the logits of every row."""

    name = "aligner"
    weights = (f"{DECODER}.layers", f"{DECODER}.norm", HEAD)
    min_bits = 8

    def build(self, weights: Qwen3ASRWeights, model: Model) -> nn.Module:
        thinker, config = weights.thinker, model.config.thinker_config.text_config
        return QwenStack(thinker.model, thinker.lm_head, config, model.cache_length, all_rows=True)

    def components(self, model: Model) -> tuple[Component, ...]:
        thinker = model.config.thinker_config
        width, classes = thinker.text_config.hidden_size, thinker.classify_num
        assert classes  # as every aligner has
        signature = Signature(
            inputs=(TensorSpec("embeddings", "float32", (1, "S", width), Kind.EMBEDDING), POSITION),
            outputs=(
                TensorSpec("hidden", "float32", (1, "S", width), Kind.HIDDEN),
                TensorSpec("logits", "float32", (1, "S", classes), Kind.LOGITS),
            ),
            states=_caches(model),
            dims={"S": (1, PROMPT_ROWS)},
        )
        purpose = "embeddings of the next rows of sound and text, and the logits of a time at each row"
        return (Component(ALIGN, self.name, signature, partial(random_embeddings, width), purpose),)


RECOGNISER_GRAPHS = (TokenTable(), EncoderGraph(), DecoderGraph())
ALIGNER_GRAPHS = (TokenTable(), EncoderGraph(), AlignerGraph())


def _caches(model: Model) -> tuple[StateSpec, ...]:
    text = model.config.thinker_config.text_config
    shape = cache_shape(model.layout, model.cache_length, text.num_key_value_heads, text.head_dim)
    return kv_caches(text.num_hidden_layers, shape, CacheSpec(model.layout))


def _random_mel(mels: int, seed: int, C: int = 2) -> Inputs:
    """By turns a whole window, one that ends within its last chunk, and a recording below one chunk."""
    case = seed % 3 if C == 1 else seed % 2
    frames = (C * CHUNK_FRAMES, (C - 1) * CHUNK_FRAMES + 33, 33)[case]
    mel = np.random.default_rng(seed).uniform(*MEL_RANGE, (1, C, CHUNK_FRAMES, mels)).astype(np.float32)
    mel.reshape(1, C * CHUNK_FRAMES, mels)[:, frames:] = 0
    return {"mel": mel, "frames": np.array([frames]), "is_short": np.array([int(case == 2)])}
