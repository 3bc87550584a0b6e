"""The components of Voxtral-TTS, as data: signatures, constants and order of calls."""

from functools import partial

import numpy as np

from voxport.bundle.json_types import Json
from voxport.bundle.spec import CacheSpec, Kind, LayoutName, Signature, StateSpec, TensorSpec, cache_shape
from voxport.model.component import PROMPT_ROWS, Component, Inputs, random_ids
from voxport.model.voxtral_tts.config import FIRST_LEVEL, AudioTokenizerArgs, Options, VoxtralTTSConfig

MAX_CODEC_FRAMES = 256  # frames of one codec call; codec_step decodes longer utterances


def constants(config: VoxtralTTSConfig, options: Options) -> Json:
    """Everything that a runner needs besides names and shapes."""
    return {
        "sample_rate": config.codec.sampling_rate,
        "samples_per_frame": config.codec.samples_per_frame,
        "dim": config.dim,
        "vocab_size": config.vocab_size,
        "n_codebooks": config.n_codebooks,
        "semantic_codes": config.audio.semantic_codebook_size,
        "acoustic_levels": config.audio.acoustic_codebook_size,
        "euler_steps": options.euler_steps,
        "bos_id": config.multimodal.bos_token_id,
        "audio_id": config.audio.audio_token_id,
        "begin_audio_id": config.audio.begin_audio_token_id,
    }


def components(
    config: VoxtralTTSConfig, options: Options, cache_length: int, layout: LayoutName = "BSHD"
) -> tuple[Component, ...]:
    """All components. The caches of the backbone have `cache_length` rows in `layout`."""
    backbone = partial(_backbone_signature, config, cache_length, layout)
    return (
        Component(
            name="embed_text",
            graph="embed_text",
            signature=Signature(
                inputs=(TensorSpec("ids", "int64", (1, "S"), Kind.INDEX),),
                outputs=(TensorSpec("embeddings", "float32", (1, "S", config.dim), Kind.EMBEDDING),),
                dims={"S": (1, cache_length)},
            ),
            example=partial(random_ids, config.vocab_size),
            purpose="rows of the text table; the voice then overwrites the rows of [AUDIO] ids",
            rows_per_call=PROMPT_ROWS,
        ),
        _embed_codes(config),
        Component(
            name="prefill",
            graph="backbone",
            signature=backbone("S"),
            example=partial(_random_embeddings, config),
            purpose="embeddings of the prompt, written to the cache from `position` on",
            rows_per_call=PROMPT_ROWS,
        ),
        Component(
            name="decode_step",
            graph="backbone",
            signature=backbone(1),
            example=partial(_random_embeddings, config, S=1),
            purpose="embedding of the last frame, written to the cache at `position`",
            batched=True,
        ),
        _acoustic_step(config, options.euler_steps),
        *_codec(config),
    )


def _embed_codes(config: VoxtralTTSConfig) -> Component:
    return Component(
        name="embed_codes",
        graph="embed_codes",
        signature=Signature(
            inputs=(TensorSpec("codes", "int64", (1, config.n_codebooks), Kind.INDEX),),
            outputs=(TensorSpec("embeddings", "float32", (1, 1, config.dim), Kind.EMBEDDING),),
        ),
        example=lambda seed: {"codes": _random_codes(config, seed, 1)[:, 0]},
        purpose="codes of one frame, specials counted, to the next input of decode_step",
        batched=True,
    )


def _backbone_signature(
    config: VoxtralTTSConfig, cache_length: int, layout: LayoutName, rows: int | str
) -> Signature:
    shape = cache_shape(layout, cache_length, config.n_kv_heads, config.head_dim)
    return Signature(
        inputs=(
            TensorSpec("embeddings", "float32", (1, rows, config.dim), Kind.EMBEDDING),
            TensorSpec("position", "int64", (1,), Kind.INDEX),
        ),
        outputs=(
            TensorSpec("hidden", "float32", (1, rows, config.dim), Kind.HIDDEN),
            TensorSpec("semantic_logits", "float32", (1, config.semantic_rows), Kind.LOGITS),
            TensorSpec("condition", "float32", (1, config.acoustic.dim), Kind.HIDDEN),
        ),
        states=tuple(
            StateSpec(f"{kind}_cache_{i}", "float32", shape, CacheSpec(layout))
            for i in range(config.n_layers)
            for kind in "kv"
        ),
        dims={"S": (1, cache_length)} if rows == "S" else {},
    )


def _acoustic_step(config: VoxtralTTSConfig, steps: int) -> Component:
    books = config.audio.n_acoustic_codebook

    def example(seed: int) -> Inputs:
        rng = np.random.default_rng(seed)
        return {
            "x": rng.standard_normal((1, books), dtype=np.float32),
            "step": np.array([seed % steps]),
            "condition": rng.standard_normal((1, config.acoustic.dim), dtype=np.float32),
        }

    return Component(
        name="acoustic_step",
        graph="acoustic_step",
        signature=Signature(
            inputs=(
                TensorSpec("x", "float32", (1, books), Kind.LATENT),
                TensorSpec("step", "int64", (1,), Kind.INDEX),
                TensorSpec("condition", "float32", (1, config.acoustic.dim), Kind.HIDDEN),
            ),
            outputs=(
                TensorSpec("next_x", "float32", (1, books), Kind.LATENT),
                TensorSpec("velocity", "float32", (1, 2, books), Kind.LATENT),
            ),
        ),
        example=example,
        purpose=f"one of {steps} Euler steps from noise to the acoustic values of a frame",
        batched=True,
        cases=steps,
    )


def _codec(config: VoxtralTTSConfig) -> tuple[Component, ...]:
    signature = Signature(
        inputs=(
            TensorSpec("codes", "int64", (1, "T", config.n_codebooks), Kind.INDEX),
            TensorSpec("position", "int64", (1,), Kind.INDEX),
        ),
        outputs=(TensorSpec("audio", "float32", (1, f"{config.codec.samples_per_frame}*T"), Kind.AUDIO),),
        states=_codec_states(config.codec),
        dims={"T": (1, MAX_CODEC_FRAMES)},
    )
    # with a dynamic size, lowering to ExecuTorch takes twice as long, and calls are not faster
    make = partial(Component, graph="codec", signature=signature, rows_per_call=1)
    return tuple(
        make(name, example=partial(_random_frames, config), purpose=purpose)
        for name, purpose in (
            (
                "codec",
                "codes of a whole utterance to samples; `position` is 0, and the states have no effect",
            ),
            ("codec_step", "the next frames of an utterance to samples; `position` counts the frames before"),
        )
    )


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


def _random_embeddings(config: VoxtralTTSConfig, seed: int, S: int = 8) -> Inputs:
    values = np.random.default_rng(seed).standard_normal((1, S, config.dim), dtype=np.float32)
    return {"embeddings": values, "position": np.array([0])}


def _random_frames(config: VoxtralTTSConfig, seed: int, T: int = 1) -> Inputs:
    return {"codes": _random_codes(config, seed, T), "position": np.array([0])}


def _random_codes(config: VoxtralTTSConfig, seed: int, frames: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    semantic = rng.integers(0, config.audio.semantic_codebook_size, (1, frames, 1))
    shape = (1, frames, config.audio.n_acoustic_codebook)
    acoustic = rng.integers(0, config.audio.acoustic_codebook_size, shape)
    return np.concatenate((semantic, acoustic), axis=-1) + FIRST_LEVEL


CALLS = """\
## Order of calls

1. Build the prompt. `ids` = {bos}, {begin}, one {audio} per voice row, [NEXT_AUDIO_TEXT], the ids of the
   text, [REPEAT_AUDIO_TEXT], {begin}. `tekken.json` gives the ids of the text and of the two markers.
   - The tokenizer is byte-level BPE over the pieces that the regular expression `pattern` splits (Unicode
     classes).
   - The id of a piece is its rank + `default_num_special_tokens`. Entries beyond `default_vocab_size` ids are
     not used.
   - The two markers are special tokens; their ids are their ranks. A special token typed in a text is encoded
     as text.
   - The text is encoded without normalisation.
2. Call `embed_text(ids{extra})`. Then overwrite the rows of the prompt's ids {audio} with the rows of the
   voice{but}.
3. Call `prefill(embeddings, position=0)`. Its `semantic_logits` and `condition` are those of the last row.
4. For each frame:
   a. The semantic code is the argmax of `semantic_logits` without row 0 and without rows from {rows} on. Code
      1 ends the speech.
   b. Draw `x`, {acoustic} standard normals. For `step` 0 ... {last_step}: `x = acoustic_step(x, step,
      condition).next_x`.
   c. The acoustic codes are round((clamp(x, -1, 1) + 1) / 2 * {top}) + 2, rounded half to even.
   d. Call `embed_codes(codes)`, then `decode_step(embeddings, position)`. `position` counts rows since the
      first of the prompt.
   e. Call `codec_step(codes, position)` for {samples} samples. `position` counts frames. The bounds of T are
      below.
   Stop as well when the caches have no row left for d.
5. The samples are {rate} Hz mono. Clip them to [-1, 1].

A new utterance starts at position 0. States need not be cleared if they are finite.
"""


def calls(constants: Json, options: Json) -> str:
    """The text for a bundle with these constants and options of its manifest."""
    from_audio_token = options["first_frame"] == "audio_token"
    audio = constants["audio_id"]
    return CALLS.format(
        bos=constants["bos_id"],
        begin=constants["begin_audio_id"],
        audio=audio,
        extra=f" + [{audio}]" if from_audio_token else "",
        but="; the extra row keeps its embedding and gives frame 0" if from_audio_token else "",
        rows=2 + constants["semantic_codes"],
        acoustic=constants["n_codebooks"] - 1,
        last_step=constants["euler_steps"] - 1,
        top=constants["acoustic_levels"] - 1,
        samples=constants["samples_per_frame"],
        rate=constants["sample_rate"],
    )
