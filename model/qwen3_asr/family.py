"""The family Qwen3-ASR: recognisers and the forced aligner."""

from collections.abc import Collection

from voxport.bundle.constants.qwen3_asr import (
    CODES,
    LANGUAGES,
    AlignerConstants,
    Qwen3ASRConstants,
)
from voxport.bundle.constants.qwen3_tts import PATTERN
from voxport.bundle.json_types import Json
from voxport.model.config import values_of
from voxport.model.family import Decoder, Family, Release, VerificationPlan
from voxport.model.qwen3_asr.config import CHUNK_FRAMES, CHUNK_ROWS, Options, Qwen3ASRConfig
from voxport.model.qwen3_asr.graphs import ALIGNER_GRAPHS, RECOGNISER_GRAPHS, Graph
from voxport.model.qwen3_asr.layouts import LAYOUTS
from voxport.model.qwen3_asr.modules import Qwen3ASRWeights
from voxport.model.qwen3_asr.sizes import config_of

SAMPLE_RATE, HOP, WINDOW = 16_000, 160, 400  # of the published front end
DECODER_SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
ENCODER_SHAPE = ("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "n_window_infer")


class Qwen3ASR(Family[Qwen3ASRWeights, Qwen3ASRConfig, Options]):
    name = "qwen3_asr"
    title = "Qwen3-ASR"
    licence = "the published Qwen3-ASR weights are Apache 2.0"
    task = "automatic-speech-recognition"
    languages = LANGUAGES
    releases = (
        Release("Qwen/Qwen3-ASR-0.6B", "apache-2.0", size="0.6b"),
        Release("Qwen/Qwen3-ASR-1.7B", "apache-2.0", size="1.7b"),
        Release("Qwen/Qwen3-ForcedAligner-0.6B", "apache-2.0", size="0.6b-aligner"),
    )
    options = Options
    layouts = LAYOUTS
    verification = VerificationPlan(decoders=(Decoder("prefill", "decode_step", output="hidden"),))
    parameter_groups = {
        "thinker.audio_tower.": "audio encoder",
        "thinker.model.embed_tokens.": "token embeddings",
        "thinker.model.": "decoder",
        "thinker.lm_head.": "head",
    }
    unused = {"thinker.lm_head.": "nothing: a tied head is the token table"}
    call_facts = {"pattern": PATTERN}

    def size_config(self, size: str) -> Json:
        return config_of(size)

    def weights(self, config: Qwen3ASRConfig) -> Qwen3ASRWeights:
        return Qwen3ASRWeights(config)

    def graphs(self, config: Qwen3ASRConfig, options: Options) -> tuple[Graph, ...]:
        return ALIGNER_GRAPHS if config.is_aligner else RECOGNISER_GRAPHS

    def longest_cache(self, config: Qwen3ASRConfig) -> int:
        return config.thinker_config.text_config.max_position_embeddings

    def default_cache(self, config: Qwen3ASRConfig, options: Options) -> int:
        if config.is_aligner:  # which needs 13 rows a second for sound, and two a word beside its tokens
            return min(8192, self.longest_cache(config))
        return 4096  # recordings of 180 s have 2,340 rows of sound

    def constants(self, config: Qwen3ASRConfig, options: Options) -> Qwen3ASRConstants:
        thinker, aligner = config.thinker_config, None
        if config.is_aligner:
            stamp, step, classes = (
                config.timestamp_token_id,
                config.timestamp_segment_time,
                thinker.classify_num,
            )
            assert stamp is not None and step and classes  # as the configuration was checked
            aligner = AlignerConstants(timestamp_id=stamp, classes=classes, step_ms=step)
        return Qwen3ASRConstants(
            sample_rate=SAMPLE_RATE,
            n_mels=thinker.audio_config.num_mel_bins,
            hop_length=HOP,
            window_size=WINDOW,
            chunk_frames=CHUNK_FRAMES,
            chunk_rows=CHUNK_ROWS,
            window_chunks=thinker.audio_config.window_chunks,
            dim=thinker.text_config.hidden_size,
            vocab_size=thinker.text_config.vocab_size,
            im_start_id=config.im_start_token_id,
            im_end_id=config.im_end_token_id,
            audio_start_id=thinker.audio_start_token_id,
            audio_end_id=thinker.audio_end_token_id,
            audio_pad_id=thinker.audio_token_id,
            asr_text_id=config.asr_text_token_id,
            end_ids=config.generation.eos_token_id,
            languages=config.support_languages,
            kind="aligner" if config.is_aligner else "recogniser",
            aligner=aligner,
        )

    def variant(self, config: Qwen3ASRConfig) -> str:
        return config.thinker_config.model_type

    def config_languages(self, config: Qwen3ASRConfig, voices: Collection[str]) -> set[str]:
        return {CODES[name] for name in config.support_languages if name in CODES}

    def summary(self, config: Qwen3ASRConfig) -> list[tuple[str, str]]:
        thinker = config.thinker_config
        return [
            ("decoder", values_of(thinker.text_config, *DECODER_SHAPE, "vocab_size", "tie_word_embeddings")),
            ("encoder", values_of(thinker.audio_config, *ENCODER_SHAPE)),
            ("kind", "forced aligner" if config.is_aligner else "recogniser"),
        ]


FAMILY = Qwen3ASR()
