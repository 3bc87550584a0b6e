"""The family Qwen3-TTS."""

from collections.abc import Collection

from voxport.bundle.constants.qwen3_tts import LANGUAGES, WINDOW_CONTEXT, Constants
from voxport.bundle.json_types import Json
from voxport.bundle.names import NAMES
from voxport.model.config import values_of
from voxport.model.family import ChunkedComponent, Decoder, Family, Release, VerificationPlan
from voxport.model.qwen3_tts.config import CONTROL_IDS, Options, Qwen3TTSConfig
from voxport.model.qwen3_tts.graphs import ENCODERS, GRAPHS, Graph
from voxport.model.qwen3_tts.layouts import LAYOUTS
from voxport.model.qwen3_tts.modules import UNUSED, AllQwen3TTSWeights, Qwen3TTSWeights
from voxport.model.qwen3_tts.sizes import config_of
from voxport.model.qwen3_tts.split_six.graphs import CACHE_ROWS, DECODER_FRAMES
from voxport.model.qwen3_tts.split_six.graphs import GRAPHS as SPLIT_SIX

SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
CALLS = """\
## Order of calls

All ids are in `constants` of `manifest.json`. Rows have {dim} values.

1. Encode the text: byte-level BPE of `vocab.json` and `merges.txt`, after NFC. Special tokens typed in a text
   are encoded as text. `embed_text(ids)` gives a row for each id.
2. Build two sequences of rows and add them position by position.
   a. An instruction, if any, comes first, as text only: im_start, the ids of "user" and a line break, those
      of the instruction, im_end, line break.
   b. Then text only: im_start, assistant, line break.
   c. Codes: think, think_bos, the language's id and think_eos; without a language nothink, think_bos and
      think_eos. Then the speaker's row, if any, and pad. Each is `embed_codes` of a frame whose code 0 is
      this id and whose other codes are -1; a voice from a recording gives its row itself. The text beside
      them is tts_pad, and tts_bos beside pad.
   d. With text added while frames are made: the first text row beside the code bos. Each later text row, then
      tts_eos, then tts_pad for ever, is added to a frame in 4d.
      With all text before the frames: each text row and tts_eos beside the code pad, then tts_pad beside bos.
3. Call `prefill(embeddings, position=0)`.
4. For each frame:
   a. Code 0 is drawn from `logits`: of the first {codes} ids and codec_eos_token_id, which ends the speech
      and is not drawn for the first two frames. Apply repetition penalty over earlier codes 0, temperature,
      top_k, top_p.
   b. Call `code_predictor` with the last row of `hidden`, code 0 and {others} codes of -1. `noise` are Gumbel
      values. For the codes with the largest logits give zeros as noise and 1 as temperature.
   c. Call `codec_step(codes, position)` for {samples} samples. `position` counts frames.
   d. Call `embed_codes(codes)`, add the text row of this frame, and call `decode_step(embeddings, position)`.
      `position` counts rows since the first of the prompt.
   Stop as well when the caches have no row left for d.
5. The samples are {rate} Hz mono, within [-1, 1].

A new utterance starts at position 0. States need not be cleared if they are finite.
"""


SPLIT_SIX_CALLS = """\
## Order of calls

All ids are in `constants` of `manifest.json`. Rows have {dim} values, and are [1, {dim}, 1, 1] between
graphs. `TextProjector` gives the row of an id of text, `CodeEmbedder` that of an id of the talker's
vocabulary, `MultiCodeEmbedder` that of code g > 0 of a frame; its id is {size} * (g - 1) + code.

`CodeDecoder` and `MultiCodeDecoder` take one position p at a call, from 0 on, as `cache_length`. Give
`key_padding_mask` 0 for rows 0 to p and -1e4 for the others, and `kv_cache_update_mask` 1 for row p and
0 for the others. Their two caches are states, with channels in the order layer, head, dimension.

1. Encode the text: byte-level BPE of `vocab.json` and `merges.txt`, after NFC.
2. Build two sequences of rows and add them position by position.
   a. Text only: the instruction, if any (im_start, "user" and a line break, its ids, im_end, line
      break), then im_start, assistant, line break.
   b. Codes: think, think_bos, the language's id and think_eos; without a language nothink, think_bos
      and think_eos. Then the speaker's row, if any, and pad. The text beside them is tts_pad, and
      tts_bos beside pad.
   c. Each text row and tts_eos beside the code pad, then tts_pad beside the code bos.
3. Call `CodeDecoder` with each row.
4. For each frame:
   a. Code 0 is drawn from `logits`: of the first {codes} ids and codec_eos_token_id, which ends the
      speech and is not drawn for the first two frames. Apply repetition penalty over earlier codes 0,
      temperature, top_k, top_p.
   b. Call `MultiCodeDecoder` with `hidden_states` of `CodeDecoder` at position 0 and with the row of
      code 0 at position 1; row 0 of `all_logits` then gives code 1. Call it with the row of code g at
      position g + 1; row g gives code g + 1. The frame has {books} codes.
   c. Add the rows of all codes of the frame and that of tts_pad. Call `CodeDecoder` with the sum.
   Stop as well when the cache has no row left.
5. Call `SpeechDecoder` with the codes of up to {frames} frames, and zeros behind them. Each frame gives
   {samples} samples of {rate} Hz, mono, within [-1, 1]. Cut off the others. For longer speech put the
   last {context} frames before the next ones, and cut off their samples.

The graphs have the names, inputs and outputs of the models of speech-swift. Differences: caches are
states; products are linear operators, not convolutions of size 1; a Base model also has its two
encoders.
"""


class Qwen3TTS(Family[Qwen3TTSWeights, Qwen3TTSConfig, Options]):
    name = "qwen3_tts"
    title = "Qwen3-TTS"
    licence = "the published Qwen3-TTS weights are Apache 2.0"
    task = "text-to-speech"
    languages = LANGUAGES
    releases = (
        Release("Qwen/Qwen3-TTS-12Hz-0.6B-Base", "apache-2.0", size="0.6b"),
        Release("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice", "apache-2.0", size="0.6b-custom-voice"),
        Release("Qwen/Qwen3-TTS-12Hz-1.7B-Base", "apache-2.0", size="1.7b"),
        Release("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "apache-2.0", size="1.7b-custom-voice"),
        Release("Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign", "apache-2.0", size="1.7b-voice-design"),
    )
    options = Options
    layouts = LAYOUTS
    verification = VerificationPlan(
        decoders=(Decoder("prefill", "decode_step", output="hidden"),),
        chunked=(ChunkedComponent("codec", "codec_step"),),
    )
    parameter_groups = {
        "talker.model.text_embedding.": "text embeddings",
        "talker.text_projection.": "text embeddings",
        "talker.model.codec_embedding.": "code embeddings",
        "talker.model.": "talker",
        "talker.codec_head.": "talker",
        "talker.code_predictor.": "code predictor",
        "speech_tokenizer.decoder.": "codec",
        "speech_tokenizer.encoder.": "speech encoder",
        "speaker_encoder.": "speaker encoder",
    }
    unused = UNUSED

    def size_config(self, size: str) -> Json:
        return config_of(size)

    def weights(self, config: Qwen3TTSConfig) -> Qwen3TTSWeights:
        return Qwen3TTSWeights(config)

    def all_weights(self, config: Qwen3TTSConfig) -> AllQwen3TTSWeights:
        return AllQwen3TTSWeights(config)

    def graphs(self, config: Qwen3TTSConfig, options: Options) -> tuple[Graph, ...]:
        graphs = SPLIT_SIX if options.is_split_six else GRAPHS
        return (*graphs, *ENCODERS) if config.has_encoders else graphs

    def longest_cache(self, config: Qwen3TTSConfig) -> int:
        return config.talker_config.max_position_embeddings

    def default_cache(self, config: Qwen3TTSConfig, options: Options) -> int:
        return CACHE_ROWS if options.is_split_six else 2048  # 150 s of speech after a prompt of 170 rows

    def constants(self, config: Qwen3TTSConfig, options: Options) -> Constants:
        """Speakers and languages are in lower case, as the published package compares them."""
        talker = config.talker_config
        return Constants(
            sample_rate=config.codec.output_sample_rate,
            samples_per_frame=config.codec.decode_upsample_rate,
            dim=talker.hidden_size,
            n_codebooks=talker.num_code_groups,
            vocab_size=talker.vocab_size,
            text_vocab_size=talker.text_vocab_size,
            first_codes=talker.vocab_size - CONTROL_IDS,
            other_codes=talker.code_predictor_config.vocab_size,
            im_start_id=config.im_start_token_id,
            im_end_id=config.im_end_token_id,
            assistant_id=config.assistant_token_id,
            tts_pad_id=config.tts_pad_token_id,
            tts_bos_id=config.tts_bos_token_id,
            tts_eos_id=config.tts_eos_token_id,
            codec_pad_id=talker.codec_pad_id,
            codec_bos_id=talker.codec_bos_id,
            codec_eos_token_id=talker.codec_eos_token_id,
            codec_think_id=talker.codec_think_id,
            codec_nothink_id=talker.codec_nothink_id,
            codec_think_bos_id=talker.codec_think_bos_id,
            codec_think_eos_id=talker.codec_think_eos_id,
            codec_language_id={name.lower(): each for name, each in talker.codec_language_id.items()},
            speakers={name.lower(): talker.speaker_id(name) for name in talker.spk_id},
            dialects={name.lower(): key.lower() for name, key in talker.spk_is_dialect.items() if key},
            kind=config.tts_model_type,
            size=config.tts_model_size,
            sampling_defaults=config.generation.sampling(),
            max_frames=config.generation.max_frames,
        )

    def variant(self, config: Qwen3TTSConfig) -> str:
        return config.tts_model_type

    def config_languages(self, config: Qwen3TTSConfig, voices: Collection[str]) -> set[str]:
        return {
            NAMES[name] for name in map(str.lower, config.talker_config.codec_language_id) if name in NAMES
        }

    def summary(self, config: Qwen3TTSConfig) -> list[tuple[str, str]]:
        talker, codec = config.talker_config, config.codec.decoder_config
        return [
            ("kind", f"{config.tts_model_type}, size {config.tts_model_size}"),
            ("talker", values_of(talker, *SHAPE, "vocab_size", "text_vocab_size")),
            ("predictor", values_of(talker.code_predictor_config, *SHAPE, "vocab_size", "num_code_groups")),
            ("codec", values_of(codec, "latent_dim", "decoder_dim", "num_hidden_layers", "sliding_window")),
            ("languages", ", ".join(sorted(talker.codec_language_id))),
            ("speakers", ", ".join(talker.spk_id) or "none"),
        ]

    def calls(self, config: Qwen3TTSConfig, options: Options) -> str:
        constants = self.constants(config, options)
        return (SPLIT_SIX_CALLS if options.is_split_six else CALLS).format(
            dim=constants.dim,
            size=constants.other_codes,
            books=constants.n_codebooks,
            frames=DECODER_FRAMES,
            context=WINDOW_CONTEXT,
            codes=constants.first_codes,
            others=constants.n_codebooks - 1,
            samples=constants.samples_per_frame,
            rate=constants.sample_rate,
        )


FAMILY = Qwen3TTS()
