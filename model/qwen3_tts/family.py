"""The family Qwen3-TTS."""

from collections.abc import Collection

from voxport.bundle.constants.qwen3_tts import LANGUAGES, PATTERN, WINDOW_CONTEXT, QwenConstants
from voxport.bundle.json_types import Json
from voxport.bundle.names import NAMES
from voxport.model.config import values_of
from voxport.model.family import ChunkedComponent, Decoder, Family, Release, VerificationPlan
from voxport.model.qwen3_tts.config import CONTROL_IDS, TEXT_IDS, Options, Qwen3TTSConfig
from voxport.model.qwen3_tts.graphs import ENCODERS, GRAPHS, Graph
from voxport.model.qwen3_tts.layouts import LAYOUTS
from voxport.model.qwen3_tts.modules import UNUSED, AllQwen3TTSWeights, Qwen3TTSWeights
from voxport.model.qwen3_tts.sizes import config_of
from voxport.model.qwen3_tts.split_six.graphs import CACHE_ROWS, DECODER_FRAMES
from voxport.model.qwen3_tts.split_six.graphs import GRAPHS as SPLIT_SIX

SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")


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
    call_facts = {"frames": DECODER_FRAMES, "context": WINDOW_CONTEXT, "pattern": PATTERN}

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

    def constants(self, config: Qwen3TTSConfig, options: Options) -> QwenConstants:
        """Speakers and languages are in lower case, as the published package compares them."""
        talker = config.talker_config
        return QwenConstants(
            sample_rate=config.codec.output_sample_rate,
            samples_per_frame=config.codec.decode_upsample_rate,
            dim=talker.hidden_size,
            n_codebooks=talker.num_code_groups,
            vocab_size=talker.vocab_size,
            text_vocab_size=talker.text_vocab_size,
            first_codes=talker.vocab_size - CONTROL_IDS,
            other_codes=talker.code_predictor_config.vocab_size,
            **{name.replace("_token_id", "_id"): getattr(config, name) for name in TEXT_IDS},
            **talker.control_ids,
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


FAMILY = Qwen3TTS()
