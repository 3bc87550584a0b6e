"""The family Voxtral-TTS."""

from collections.abc import Collection

from voxport.bundle.constants.voxtral_tts import LANGUAGES, VoxtralConstants
from voxport.bundle.json_types import Json
from voxport.model.config import SHAPE, values_of
from voxport.model.family import Approximation, ChunkedComponent, Decoder, Family, Release, VerificationPlan
from voxport.model.voxtral_tts.config import Options, VoxtralTTSConfig
from voxport.model.voxtral_tts.graphs import GRAPHS, Graph
from voxport.model.voxtral_tts.layouts import LAYOUTS
from voxport.model.voxtral_tts.modules import VoxtralTTSWeights
from voxport.model.voxtral_tts.sizes import SIZES

CODEC_ENCODER = "a codec encoder, which would make voices from recordings"
ENGLISH = {"casual", "cheerful", "neutral"}  # the published English voices have the names of styles
CODEC_KEYS = ("dim", "hidden_dim", "head_dim", "n_heads", "decoder_transformer_lengths")


class VoxtralTTS(Family[VoxtralTTSWeights, VoxtralTTSConfig, Options]):
    name = "voxtral_tts"
    title = "Voxtral-TTS"
    licence = "the published Voxtral-4B-TTS weights and voices are CC BY-NC 4.0, not for commercial use"
    task = "text-to-speech"
    languages = LANGUAGES
    releases = (Release("mistralai/Voxtral-4B-TTS-2603", "cc-by-nc-4.0"),)
    options = Options
    layouts = LAYOUTS
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

    def size_config(self, size: str) -> Json:
        return SIZES[size].params()

    def weights(self, config: VoxtralTTSConfig) -> VoxtralTTSWeights:
        return VoxtralTTSWeights(config)

    def graphs(self, config: VoxtralTTSConfig, options: Options) -> tuple[Graph, ...]:
        return GRAPHS

    def option_defaults(self, config: VoxtralTTSConfig) -> Json:
        return {"euler_steps": config.acoustic.n_decoding_steps}

    def longest_cache(self, config: VoxtralTTSConfig) -> int:
        return 131072  # beyond what the model was trained on

    def default_cache(self, config: VoxtralTTSConfig, options: Options) -> int:
        return min(2048, config.max_seq_len)  # 150 s of speech after a prompt of 170 rows

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


FAMILY = VoxtralTTS()
