"""The family Voxtral-TTS."""

from collections.abc import Collection
from typing import Any

from voxport.bundle.constants.voxtral_tts import LANGUAGES, VoxtralConstants
from voxport.bundle.json_types import Json
from voxport.model.config import SHAPE, values_of
from voxport.model.family import Approximation, ChunkedComponent, Decoder, Family, Release, VerificationPlan
from voxport.model.voxtral_tts.config import Options, VoxtralTTSConfig, parse_config
from voxport.model.voxtral_tts.graphs import GRAPHS, Graph
from voxport.model.voxtral_tts.layouts import LAYOUTS
from voxport.model.voxtral_tts.modules import VoxtralTTSWeights
from voxport.model.voxtral_tts.synthetic import VoxtralTTSSynthetic

CODEC_ENCODER = "a codec encoder, which would make voices from recordings"
ENGLISH = {"casual", "cheerful", "neutral"}  # the published English voices have the names of styles
CODEC_KEYS = ("dim", "hidden_dim", "head_dim", "n_heads", "decoder_transformer_lengths")
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


class VoxtralTTS(Family[VoxtralTTSWeights, VoxtralTTSConfig, Options]):
    name = "voxtral_tts"
    title = "Voxtral-TTS"
    licence = "the published Voxtral-4B-TTS weights and voices are CC BY-NC 4.0, not for commercial use"
    task = "text-to-speech"
    languages = LANGUAGES
    releases = (Release("mistralai/Voxtral-4B-TTS-2603", "cc-by-nc-4.0"),)
    options = Options
    layouts = LAYOUTS
    synthetic = VoxtralTTSSynthetic()
    verification = VerificationPlan(
        decoders=(Decoder("prefill", "decode_step", output="hidden"),),
        chunked=(ChunkedComponent("codec", "codec_step"),),
        approximations=(Approximation("euler_steps", "acoustic_step"),),
    )
    parameter_groups = {
        "mm_audio_embeddings.tok_embeddings.": "text embeddings",
        "mm_audio_embeddings.audio_codebook_embeddings.": "code embeddings",
        "layers.": "backbone",
        "norm.": "backbone",
        "acoustic_transformer.": "acoustic transformer",
        "audio_tokenizer.": "codec",
    }
    unused = {  # absent from the first release
        "audio_tokenizer.input_proj.": CODEC_ENCODER,
        "audio_tokenizer.encoder_blocks.": CODEC_ENCODER,
        "acoustic_transformer.time_embedding.": "time embeddings, which are computed at export",
    }
    folded = ("acoustic_transformer.time_projection",)

    def parse_config(self, content: Any, source: str) -> VoxtralTTSConfig:
        return parse_config(content, source)

    def weights(self, config: VoxtralTTSConfig) -> VoxtralTTSWeights:
        return VoxtralTTSWeights(config)

    def graphs(self, config: VoxtralTTSConfig, options: Options) -> tuple[Graph, ...]:
        return GRAPHS

    def option_defaults(self, config: VoxtralTTSConfig) -> Json:
        return {"euler_steps": config.acoustic.n_decoding_steps}

    def longest_cache(self, config: VoxtralTTSConfig) -> int:
        return 131072  # beyond what the model was trained on

    def default_cache(self, config: VoxtralTTSConfig, options: Options) -> int:
        return 2048  # 150 s of speech after a prompt of 170 rows

    def constants(self, config: VoxtralTTSConfig, options: Options) -> VoxtralConstants:
        return VoxtralConstants(
            sample_rate=config.codec.sampling_rate,
            samples_per_frame=config.codec.samples_per_frame,
            dim=config.dim,
            vocab_size=config.vocab_size,
            n_codebooks=config.n_codebooks,
            semantic_codes=config.audio.semantic_codebook_size,
            acoustic_levels=config.audio.acoustic_codebook_size,
            euler_steps=options.euler_steps,
            bos_id=config.multimodal.bos_token_id,
            audio_id=config.audio.audio_token_id,
            begin_audio_id=config.audio.begin_audio_token_id,
            first_frame=options.first_frame,
        )

    def summary(self, config: VoxtralTTSConfig) -> list[tuple[str, str]]:
        audio = config.audio
        acoustic = f"{audio.n_acoustic_codebook} of {audio.acoustic_codebook_size} levels"
        return [
            ("backbone", values_of(config, *SHAPE, "vocab_size", "max_seq_len")),
            ("codes", f"1 of {audio.semantic_codebook_size} and {acoustic} a frame"),
            ("acoustic", values_of(config.acoustic, *SHAPE, "n_decoding_steps")),
            ("codec", values_of(config.codec, *CODEC_KEYS)),
        ]

    def config_languages(self, config: VoxtralTTSConfig, voices: Collection[str]) -> set[str]:
        """As in `fr_male` and `casual_female`."""
        starts = {name.partition("_")[0] for name in voices}
        return {"en" if start in ENGLISH else start for start in starts & {*LANGUAGES, *ENGLISH}}

    def calls(self, config: VoxtralTTSConfig, options: Options) -> str:
        constants = self.constants(config, options)
        from_audio_token = options.first_frame == "audio_token"
        return CALLS.format(
            bos=constants.bos_id,
            begin=constants.begin_audio_id,
            audio=constants.audio_id,
            extra=f" + [{constants.audio_id}]" if from_audio_token else "",
            but="; the extra row keeps its embedding and gives frame 0" if from_audio_token else "",
            rows=2 + constants.semantic_codes,
            acoustic=constants.n_codebooks - 1,
            last_step=constants.euler_steps - 1,
            top=constants.acoustic_levels - 1,
            samples=constants.samples_per_frame,
            rate=constants.sample_rate,
        )


FAMILY = VoxtralTTS()
