"""The hooks of Voxtral-TTS."""

from model.config import SHAPE, values_of
from model.family import Family
from model.verification_plan import ChunkedComponent, Decoder, VerificationPlan
from model.voxtral_tts import weights
from model.voxtral_tts.build import build
from model.voxtral_tts.calls import calls
from model.voxtral_tts.components import components, constants
from model.voxtral_tts.config import Options, VoxtralTTSConfig, load_config, parse_config
from model.voxtral_tts.format import FORMAT
from model.voxtral_tts.synthetic import SYNTHETIC

LONGEST_CACHE = 131072  # rows; beyond what the model was trained on
DEFAULT_CACHE = 2048  # rows; 150 s of speech after a prompt of 170
PARAMETER_GROUPS = {
    "mm_audio_embeddings.tok_embeddings.": "text embeddings",
    "mm_audio_embeddings.audio_codebook_embeddings.": "code embeddings",
    "layers.": "backbone",
    "norm.": "backbone",
    "acoustic_transformer.": "acoustic transformer",
    "audio_tokenizer.": "codec",
}
CODEC_KEYS = ("dim", "hidden_dim", "head_dim", "n_heads", "decoder_transformer_lengths")


def _summary(config: VoxtralTTSConfig) -> list[tuple[str, str]]:
    audio = config.audio
    acoustic = f"{audio.n_acoustic_codebook} of {audio.acoustic_codebook_size} levels"
    return [
        ("backbone", values_of(config, *SHAPE, "vocab_size", "max_seq_len")),
        ("codes", f"1 of {audio.semantic_codebook_size} and {acoustic} a frame"),
        ("acoustic", values_of(config.acoustic, *SHAPE, "n_decoding_steps")),
        ("codec", values_of(config.codec, *CODEC_KEYS)),
    ]


FAMILY = Family(
    name="voxtral_tts",
    title="Voxtral-TTS",
    licence="the published Voxtral-4B-TTS weights and voices are CC BY-NC 4.0, not for commercial use",
    format=FORMAT,
    parse_config=parse_config,
    load_config=load_config,
    options=Options,
    constants=constants,
    build_root=weights.build_root,
    open_root=weights.open_root,
    weights_of_graph=weights.WEIGHTS_OF_GRAPH,
    components=components,
    build=build,
    longest_cache=lambda config: LONGEST_CACHE,
    default_cache=lambda config: DEFAULT_CACHE,
    verification=VerificationPlan(
        decoders=(Decoder("prefill", "decode_step", output="hidden"),),
        chunked=(ChunkedComponent("codec", "codec_step"),),
    ),
    parameter_groups=PARAMETER_GROUPS,
    summary=_summary,
    calls=calls,
    synthetic=SYNTHETIC,
    high_precision=weights.HIGH_PRECISION,
    constant=weights.CONSTANT,
)
