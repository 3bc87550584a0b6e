"""The family's row: what export is told of Voxtral-TTS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from model.config import SHAPE, values_of
from model.family import Family
from model.verification_plan import ChunkedComponent, Decoder, VerificationPlan
from model.voxtral_tts import components as voxtral_tts
from model.voxtral_tts.config import Switches, VoxtralTTSConfig, load_config, parse_config
from model.voxtral_tts.synthetic import SYNTHETIC
from model.voxtral_tts.voices import load_voices

LONGEST_CACHE = 131072  # rows; beyond what the model was trained on
DEFAULT_CACHE = 2048  # rows; 150 s of speech after a prompt of 170
PARTS = {
    "mm_audio_embeddings.tok_embeddings.": "text embeddings",
    "mm_audio_embeddings.audio_codebook_embeddings.": "code embeddings",
    "layers.": "backbone",
    "norm.": "backbone",
    "acoustic_transformer.": "acoustic transformer",
    "audio_tokenizer.": "codec",
}
CALLS = """\
## Order of calls

1. The prompt: `ids` = {bos}, {begin}, one {audio} per voice row, [NEXT_AUDIO_TEXT], the text's ids, [REPEAT_AUDIO_TEXT], {begin}.
   The text's ids and those two come from `tekken.json`: byte-level BPE over what its regular expression `pattern` splits (Unicode
   classes); a piece's id is its rank + `default_num_special_tokens`, and entries beyond `default_vocab_size` in all are not used. Those two are
   specials, whose ids are their ranks; specials typed in a text are text. A text is encoded as it is.
2. `embed_text(ids{extra})`, then write the voice's rows over the rows of the prompt's ids {audio}{but}.
3. `prefill(embeddings, position=0)`; its `semantic_logits` and `condition` belong to the last row.
4. For each frame:
   a. The semantic code is the argmax of `semantic_logits` without row 0 and without rows from {rows} on. 1 ends the speech.
   b. Draw `x`, {acoustic} standard normals. For `step` 0 ... {last_step}: `x = acoustic_step(x, step, condition).next_x`.
   c. Acoustic codes: round((clamp(x, -1, 1) + 1) / 2 * {top}) + 2, half to even.
   d. `embed_codes(codes)`, then `decode_step(embeddings, position)`; `position` counts rows since the prompt's first.
   e. `codec_step(codes, position)` gives {samples} samples; `position` counts frames. The bounds of T are below.
   Stop as well where d. has no row left in the caches.
5. {rate} Hz mono, clip to [-1, 1].

A new utterance starts at position 0; states need no clearing as long as they are finite.
"""


def _calls(constants: dict[str, Any], switches: dict[str, Any]) -> str:
    from_audio_token = switches["first_frame"] == "audio_token"
    return CALLS.format(
        bos=constants["bos_id"],
        begin=constants["begin_audio_id"],
        audio=constants["audio_id"],
        extra=f" + [{constants['audio_id']}]" if from_audio_token else "",
        but="; the one behind it stays as embedded, and gives frame 0" if from_audio_token else "",
        rows=2 + constants["semantic_codes"],
        acoustic=constants["n_codebooks"] - 1,
        last_step=constants["euler_steps"] - 1,
        top=constants["acoustic_levels"] - 1,
        samples=constants["samples_per_frame"],
        rate=constants["sample_rate"],
    )


def _summary(config: VoxtralTTSConfig) -> list[tuple[str, str]]:
    audio = config.audio
    return [
        ("backbone", values_of(config, *SHAPE, "vocab_size", "max_seq_len")),
        (
            "codes",
            f"1 of {audio.semantic_codebook_size} and {audio.n_acoustic_codebook} of {audio.acoustic_codebook_size} levels a frame",
        ),
        ("acoustic", values_of(config.acoustic, *SHAPE, "n_decoding_steps")),
        (
            "codec",
            values_of(
                config.codec, "dim", "hidden_dim", "head_dim", "n_heads", "decoder_transformer_lengths"
            ),
        ),
    ]


def _voices(folder: Path, config: VoxtralTTSConfig) -> dict[str, Any]:
    return load_voices(folder, config.dim)


FAMILY = Family(
    name="voxtral_tts",
    title="Voxtral-TTS",
    licence="the published Voxtral-4B-TTS weights and voices are CC BY-NC 4.0, not for commercial use",
    parse_config=parse_config,
    load_config=load_config,
    build_root=voxtral_tts.build_root,
    root=voxtral_tts.open_root,
    components=voxtral_tts.components,
    weights_of_graph=voxtral_tts.WEIGHTS_OF_GRAPH,
    constants=lambda config, switches: voxtral_tts.constants(config),
    switches=Switches,
    longest_cache=lambda config: LONGEST_CACHE,
    default_cache=lambda config: DEFAULT_CACHE,
    verification=VerificationPlan(
        decoders=(Decoder("prefill", "decode_step", output="hidden"),),
        chunked=(ChunkedComponent("codec", "codec_step"),),
    ),
    parts=PARTS,
    summary=_summary,
    calls=_calls,
    synthetic=SYNTHETIC,
    voices=_voices,
    high_precision=voxtral_tts.HIGH_PRECISION,
    constant=voxtral_tts.CONSTANT,
)
