"""The graphs of Voxtral-Realtime."""

from functools import partial

import numpy as np
from torch import nn

from voxport.bundle.constants.voxtral_realtime import ENCODER, LIVE_ENCODER
from voxport.bundle.spec import CacheSpec, Kind, Signature, StateSpec, TensorSpec, cache_shape
from voxport.model.graph import (
    POSITION,
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
from voxport.model.voxtral_realtime.config import AUDIO, KERNEL, Options, VoxtralRealtimeConfig
from voxport.model.voxtral_realtime.modules import Decoder, Encoder, VoxtralRealtimeWeights

MAX_ENCODER_TOKENS = 32  # one encoder call: 2.56 s; a longer recording is several calls
MEL_RANGE = (-0.625, 1.6)  # a log-mel value, digital silence to full scale
Graph = GraphSpec[VoxtralRealtimeWeights, VoxtralRealtimeConfig, Options]
Model = ModelSpec[VoxtralRealtimeConfig, Options]


class TokenTable(Graph):
    """The token table."""

    name = "embed_tokens"
    weights = (f"{AUDIO}.tok_embeddings",)

    def build(self, weights: VoxtralRealtimeWeights, model: Model) -> nn.Module:
        return TokenEmbedding(weights.audio.tok_embeddings)

    def components(self, model: Model) -> tuple[Component, ...]:
        purpose = "rows of the token table, which are added to the audio's"
        config = model.config
        return (token_table(self, model, config.vocab_size, config.dim, purpose, batched=True),)


class EncoderGraph(Graph):
    """The audio encoder."""

    name = "encoder"
    weights = (f"{AUDIO}.whisper_encoder", f"{AUDIO}.audio_language_projection")

    def build(self, weights: VoxtralRealtimeWeights, model: Model) -> nn.Module:
        return Encoder(weights.audio, model.config)

    def components(self, model: Model) -> tuple[Component, ...]:
        example = partial(_random_mel, model.config)
        recording = Component(
            name=ENCODER,
            graph=self.name,
            signature=self._signature(model, "T"),
            example=example,
            purpose="the next log-mel frames of a recording to embeddings; "
            "`position` counts the tokens encoded before",
        )
        live = Component(
            name=LIVE_ENCODER,
            graph=self.name,
            signature=self._signature(model, 1),
            example=partial(example, T=1),
            purpose="the next 80 ms of a live stream, in the same way",
        )
        return (recording, live) if model.options.streaming else (recording,)

    def _signature(self, model: Model, tokens: int | str) -> Signature:
        config, args, mels = model.config, model.config.encoder, model.config.audio.num_mel_bins
        max_rows = config.downsample * MAX_ENCODER_TOKENS
        rows = args.sliding_window - 1 + max_rows
        shape = cache_shape(model.layout, rows, args.n_kv_heads, args.head_dim)
        cache = CacheSpec(model.layout, args.sliding_window, config.downsample, max_rows)
        return Signature(
            inputs=(
                TensorSpec("mel", "float32", (1, tokens, config.mel_frames_per_token, mels), Kind.HIDDEN),
                POSITION,
            ),
            outputs=(TensorSpec("embeddings", "float32", (1, tokens, config.dim), Kind.EMBEDDING),),
            states=(
                StateSpec("conv_0", "float32", (1, KERNEL - 1, mels)),
                StateSpec("conv_1", "float32", (1, 1, args.dim)),
                *kv_caches(args.n_layers, shape, cache, prefix="encoder_"),
            ),
            dims={"T": (1, MAX_ENCODER_TOKENS)} if tokens == "T" else {},
        )


class DecoderGraph(Graph):
    """The decoder. Its caches have at most the rows of its window."""

    name = "decoder"
    weights = ("layers", "norm", "output")

    def build(self, weights: VoxtralRealtimeWeights, model: Model) -> nn.Module:
        return Decoder(weights, model.config, model.options, model.cache_length)

    def components(self, model: Model) -> tuple[Component, ...]:
        config, options = model.config, model.options
        window = min(config.sliding_window, model.cache_length)
        # Runtimes hold memory for as many rows as a call may have, so the bound is the longest prompt.
        prompt = 1 + config.schedule.left_pad_tokens + max(options.delays(config))
        shape = cache_shape(model.layout, window, config.n_kv_heads, config.head_dim)
        return decoder_components(
            self.name,
            config.dim,
            min(window, prompt),
            outputs=(TensorSpec("logits", "float32", (1, config.vocab_size), Kind.LOGITS),),
            states=kv_caches(config.n_layers, shape, CacheSpec(model.layout, window)),
            example=partial(_random_embeddings, model),
            purposes=(
                "embeddings of the prompt, or of its first rows, written to the cache from `position` on; "
                "the rows of the cache bound them",
                "sum of the embeddings of a token and of its 80 ms of audio; "
                "`position` may exceed the cache's rows",
            ),
            other_inputs=(TensorSpec("delay", "int64", (1,), Kind.INDEX),),
        )


GRAPHS = (TokenTable(), EncoderGraph(), DecoderGraph())


def _random_mel(config: VoxtralRealtimeConfig, seed: int, T: int = 3) -> Inputs:
    shape = (1, T, config.mel_frames_per_token, config.audio.num_mel_bins)
    mel = np.random.default_rng(seed).uniform(*MEL_RANGE, shape).astype(np.float32)
    return {"mel": mel, "position": np.array([0])}


def _random_embeddings(model: Model, seed: int, S: int = 8) -> Inputs:
    delay = seed % len(model.options.delays_ms)  # seeds that follow each other cover every delay
    return random_embeddings(model.config.dim, seed, S) | {"delay": np.array([delay])}
