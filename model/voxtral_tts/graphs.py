"""The graphs of Voxtral-TTS."""

from functools import partial

import numpy as np
from torch import nn

from voxport.bundle.constants.voxtral_tts import FIRST_CODE
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
from voxport.model.layers.basic import TokenEmbedding
from voxport.model.voxtral_tts.codec import Codec
from voxport.model.voxtral_tts.config import AudioTokenizerArgs, Options, VoxtralTTSConfig
from voxport.model.voxtral_tts.modules import AcousticStep, Backbone, CodeEmbedding, VoxtralTTSWeights

MAX_CODEC_FRAMES = 256  # frames of one codec call; codec_step decodes longer utterances
ACOUSTIC = "acoustic_transformer"
TEXT_TABLE, CODE_TABLE = "mm_audio_embeddings.tok_embeddings", "mm_audio_embeddings.audio_codebook_embeddings"
Graph = GraphSpec[VoxtralTTSWeights, VoxtralTTSConfig, Options]
Model = ModelSpec[VoxtralTTSConfig, Options]


class TextTable(Graph):
    """The text table."""

    name = "embed_text"
    weights = (TEXT_TABLE,)

    def build(self, weights: VoxtralTTSWeights, model: Model) -> nn.Module:
        return TokenEmbedding(weights.get_submodule(TEXT_TABLE))

    def components(self, model: Model) -> tuple[Component, ...]:
        purpose = "rows of the text table; the voice then overwrites the rows of [AUDIO] ids"
        return (token_table(self, model, model.config.vocab_size, model.config.dim, purpose),)


class CodeTable(Graph):
    """The table of all code books."""

    name = "embed_codes"
    weights = (CODE_TABLE,)

    def build(self, weights: VoxtralTTSWeights, model: Model) -> nn.Module:
        return CodeEmbedding(weights.get_submodule(f"{CODE_TABLE}.embeddings"), model.config.code_offsets)

    def components(self, model: Model) -> tuple[Component, ...]:
        config = model.config
        signature = Signature(
            inputs=(TensorSpec("codes", "int64", (1, config.n_codebooks), Kind.INDEX),),
            outputs=(TensorSpec("embeddings", "float32", (1, 1, config.dim), Kind.EMBEDDING),),
        )
        purpose = "codes of one frame, specials counted, to the next input of decode_step"

        def example(seed: int) -> Inputs:
            return {"codes": _random_codes(config, seed, 1)[:, 0]}

        return (Component(self.name, self.name, signature, example, purpose, batched=True),)


class BackboneGraph(Graph):
    """The backbone with its semantic head."""

    name = "backbone"
    weights = ("layers", "norm", f"{ACOUSTIC}.semantic_codebook_output", f"{ACOUSTIC}.llm_projection")
    keep_float = (f"{ACOUSTIC}.semantic_codebook_output",)  # its error would change the stop rule

    def build(self, weights: VoxtralTTSWeights, model: Model) -> nn.Module:
        return Backbone(weights, model.config, model.cache_length)

    def components(self, model: Model) -> tuple[Component, ...]:
        config, length = model.config, model.cache_length
        shape = cache_shape(model.layout, length, config.n_kv_heads, config.head_dim)
        return decoder_components(
            self.name,
            config.dim,
            length,
            outputs=(
                TensorSpec("semantic_logits", "float32", (1, config.semantic_rows), Kind.LOGITS),
                TensorSpec("condition", "float32", (1, config.acoustic.dim), Kind.HIDDEN),
            ),
            states=kv_caches(config.n_layers, shape, CacheSpec(model.layout)),
            example=partial(random_embeddings, config.dim),
            purposes=(
                "embeddings of the prompt, written to the cache from `position` on",
                "embedding of the last frame, written to the cache at `position`",
            ),
            rows_per_call=PROMPT_ROWS,
        )


class AcousticGraph(Graph):
    """One Euler step of the acoustic head."""

    name = "acoustic_step"
    weights = tuple(
        f"{ACOUSTIC}.{part}"
        for part in ("input_projection", "time_projection", "acoustic_codebook_output", "norm", "layers")
    )
    keep_float = (f"{ACOUSTIC}.input_projection", f"{ACOUSTIC}.acoustic_codebook_output")  # small, and heard

    def build(self, weights: VoxtralTTSWeights, model: Model) -> nn.Module:
        dim, steps = model.config.acoustic.dim, model.options.euler_steps
        return AcousticStep(weights.acoustic_transformer, dim, steps)

    def components(self, model: Model) -> tuple[Component, ...]:
        config, steps = model.config, model.options.euler_steps
        books = config.audio.n_acoustic_codebook

        def example(seed: int) -> Inputs:
            rng = np.random.default_rng(seed)
            return {
                "x": rng.standard_normal((1, books), dtype=np.float32),
                "step": np.array([seed % steps]),
                "condition": rng.standard_normal((1, config.acoustic.dim), dtype=np.float32),
            }

        signature = Signature(
            inputs=(
                TensorSpec("x", "float32", (1, books), Kind.LATENT),
                TensorSpec("step", "int64", (1,), Kind.INDEX),
                TensorSpec("condition", "float32", (1, config.acoustic.dim), Kind.HIDDEN),
            ),
            outputs=(
                TensorSpec("next_x", "float32", (1, books), Kind.LATENT),
                TensorSpec("velocity", "float32", (1, 2, books), Kind.LATENT),
            ),
        )
        purpose = f"one of {steps} Euler steps from noise to the acoustic values of a frame"
        return (Component(self.name, self.name, signature, example, purpose, batched=True, cases=steps),)


class CodecGraph(Graph):
    """The decoder of the codec."""

    name = "codec"
    weights = ("audio_tokenizer",)

    def build(self, weights: VoxtralTTSWeights, model: Model) -> nn.Module:
        return Codec(weights.audio_tokenizer, model.config.codec, model.options)

    def components(self, model: Model) -> tuple[Component, ...]:
        config = model.config
        signature = Signature(
            inputs=(
                TensorSpec("codes", "int64", (1, "T", config.n_codebooks), Kind.INDEX),
                POSITION,
            ),
            outputs=(TensorSpec("audio", "float32", (1, f"{config.codec.samples_per_frame}*T"), Kind.AUDIO),),
            states=_codec_states(config.codec),
            dims={"T": (1, MAX_CODEC_FRAMES)},
        )

        def example(seed: int, T: int = 1) -> Inputs:
            return {"codes": _random_codes(config, seed, T), "position": np.array([0])}

        # with a dynamic size, lowering to ExecuTorch takes twice as long, and calls are not faster
        return codec_components(self.name, signature, example, rows_per_call=1)


GRAPHS = (TextTable(), CodeTable(), BackboneGraph(), AcousticGraph(), CodecGraph())


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


def _random_codes(config: VoxtralTTSConfig, seed: int, frames: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    semantic = rng.integers(0, config.audio.semantic_codebook_size, (1, frames, 1))
    shape = (1, frames, config.audio.n_acoustic_codebook)
    acoustic = rng.integers(0, config.audio.acoustic_codebook_size, shape)
    return np.concatenate((semantic, acoustic), axis=-1) + FIRST_CODE
