"""The hooks of Qwen3-TTS."""

from collections.abc import Collection

from torch import nn

from voxport.bundle.languages import NAMES
from voxport.model.config import values_of
from voxport.model.family import ChunkedComponent, Decoder, Family, Release, VerificationPlan
from voxport.model.qwen3_tts import modules
from voxport.model.qwen3_tts.calls import calls
from voxport.model.qwen3_tts.codec.decoder import CodecDecoder
from voxport.model.qwen3_tts.codec.encoder import CodecEncoder
from voxport.model.qwen3_tts.components import MAX_REFERENCE_FRAMES, components, constants
from voxport.model.qwen3_tts.config import Options, Qwen3TTSConfig, load_config, parse_config
from voxport.model.qwen3_tts.format import FORMAT
from voxport.model.qwen3_tts.mlx import MLX
from voxport.model.qwen3_tts.predictor import CodePredictor
from voxport.model.qwen3_tts.speaker import SpeakerEncoder
from voxport.model.qwen3_tts.split_six import modules as split_six
from voxport.model.qwen3_tts.split_six.components import CACHE_ROWS
from voxport.model.qwen3_tts.synthetic import SYNTHETIC

SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
TALKER, PREDICTOR = "talker.model", "talker.code_predictor"
TABLES = f"{PREDICTOR}.model.codec_embedding"
WEIGHTS_OF_GRAPH = {
    "embed_text": (f"{TALKER}.text_embedding", "talker.text_projection"),
    "embed_codes": (f"{TALKER}.codec_embedding", TABLES),
    "talker": (f"{TALKER}.layers", f"{TALKER}.norm", "talker.codec_head"),
    "code_predictor": (PREDICTOR, f"{TALKER}.codec_embedding"),
    "codec": ("speech_tokenizer.decoder",),
    "speech_encoder": ("speech_tokenizer.encoder",),
    "speaker_encoder": ("speaker_encoder",),
    "TextProjector": (f"{TALKER}.text_embedding", "talker.text_projection"),
    "CodeEmbedder": (f"{TALKER}.codec_embedding",),
    "MultiCodeEmbedder": (TABLES,),
    "CodeDecoder": (f"{TALKER}.layers", f"{TALKER}.norm", "talker.codec_head"),
    "MultiCodeDecoder": tuple(
        f"{PREDICTOR}.{name}" for name in ("model.layers", "model.norm", "lm_head", "small_to_mtp_projection")
    ),
    "SpeechDecoder": ("speech_tokenizer.decoder",),
}


def _summary(config: Qwen3TTSConfig) -> list[tuple[str, str]]:
    talker, codec = config.talker_config, config.codec.decoder_config
    names = ", ".join(talker.spk_id) or "none"
    return [
        ("kind", f"{config.tts_model_type}, size {config.tts_model_size}"),
        ("talker", values_of(talker, *SHAPE, "vocab_size", "text_vocab_size")),
        ("predictor", values_of(talker.code_predictor_config, *SHAPE, "vocab_size", "num_code_groups")),
        ("codec", values_of(codec, "latent_dim", "decoder_dim", "num_hidden_layers", "sliding_window")),
        ("languages", ", ".join(sorted(talker.codec_language_id))),
        ("speakers", names),
    ]


def _languages(config: Qwen3TTSConfig, voices: Collection[str]) -> set[str]:
    return {NAMES[name] for name in map(str.lower, config.talker_config.codec_language_id) if name in NAMES}


def _reads(config: Qwen3TTSConfig, graph: str) -> dict[str, int]:
    """The code predictor has a step for every code but the first."""
    if graph != "code_predictor":
        return {}
    steps = config.talker_config.num_code_groups - 1
    return {
        f"{PREDICTOR}.{name}": steps for name in ("model.layers", "model.norm", "small_to_mtp_projection")
    }


def build(
    graph: str, root: modules.Qwen3TTSWeights, config: Qwen3TTSConfig, options: Options, cache_length: int
) -> nn.Module:
    """The module of `graph`. Its weights are loaded in `root`; fusing removes some of them from there."""
    talker, codec = config.talker_config, config.codec
    match graph:
        case "embed_text":
            return modules.TextEmbedding(root.talker)
        case "embed_codes":
            return modules.CodeEmbedding(root.talker)
        case "talker":
            return modules.Talker(root.talker, talker, cache_length)
        case "code_predictor":
            return CodePredictor(root.talker, talker.code_predictor_config)
        case "codec":
            return CodecDecoder(root.speech_tokenizer.decoder, codec.decoder_config)
        case "speech_encoder":
            encoder = root.speech_tokenizer.encoder
            return CodecEncoder(encoder, codec.encoder_config, MAX_REFERENCE_FRAMES)
        case "speaker_encoder":
            return SpeakerEncoder(root.speaker_encoder)
        case "TextProjector":
            return split_six.TextProjector(root.talker)
        case "CodeEmbedder":
            return split_six.CodeEmbedder(root.talker)
        case "MultiCodeEmbedder":
            return split_six.MultiCodeEmbedder(root.talker, talker.code_predictor_config.vocab_size)
        case "CodeDecoder":
            return split_six.CodeDecoder(root.talker, talker, cache_length)
        case "MultiCodeDecoder":
            return split_six.MultiCodeDecoder(root.talker, talker.code_predictor_config)
        case "SpeechDecoder":
            return split_six.SpeechDecoder(root.speech_tokenizer.decoder, codec.decoder_config)
    raise ValueError(f"graph {graph!r}: unknown, expected one of {', '.join(WEIGHTS_OF_GRAPH)}")


FAMILY = Family(
    name="qwen3_tts",
    title="Qwen3-TTS",
    licence="the published Qwen3-TTS weights are Apache 2.0",
    task="text-to-speech",
    languages=("de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh"),
    config_languages=_languages,
    releases=(
        Release("Qwen/Qwen3-TTS-12Hz-0.6B-Base", "apache-2.0", size="0.6b"),
        Release("Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice", "apache-2.0", size="0.6b-custom-voice"),
        Release("Qwen/Qwen3-TTS-12Hz-1.7B-Base", "apache-2.0", size="1.7b"),
        Release("Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice", "apache-2.0", size="1.7b-custom-voice"),
        Release("Qwen/Qwen3-TTS-12Hz-1.7B-VoiceDesign", "apache-2.0", size="1.7b-voice-design"),
    ),
    variant=lambda config: config.tts_model_type,
    format=FORMAT,
    parse_config=parse_config,
    load_config=load_config,
    options=Options,
    constants=constants,
    weights=modules.Qwen3TTSWeights,
    weights_of_graph=WEIGHTS_OF_GRAPH,
    components=components,
    build=build,
    longest_cache=lambda config: config.talker_config.max_position_embeddings,
    # rows; 2048: 150 s of speech after a prompt of 170
    default_cache=lambda config, options: CACHE_ROWS if options.is_split_six else 2048,
    verification=VerificationPlan(
        decoders=(Decoder("prefill", "decode_step", output="hidden"),),
        chunked=(ChunkedComponent("codec", "codec_step"),),
    ),
    parameter_groups={
        "talker.model.text_embedding.": "text embeddings",
        "talker.text_projection.": "text embeddings",
        "talker.model.codec_embedding.": "code embeddings",
        "talker.model.": "talker",
        "talker.codec_head.": "talker",
        "talker.code_predictor.": "code predictor",
        "speech_tokenizer.decoder.": "codec",
        "speech_tokenizer.encoder.": "speech encoder",
        "speaker_encoder.": "speaker encoder",
    },
    summary=_summary,
    calls=calls,
    synthetic=SYNTHETIC,
    mlx=MLX,
    unused=modules.UNUSED,
    all_weights=modules.AllQwen3TTSWeights,
    eight_bits=("code_predictor", "MultiCodeDecoder"),
    exceeds_float16=(
        "code_predictor",
        "MultiCodeDecoder",
    ),  # public ports in half precision saturate, or give NaN
    reads=_reads,
    high_precision=("speech_tokenizer.*", "speaker_encoder.*", "talker.text_projection.*"),
)
