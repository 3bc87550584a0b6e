"""The hooks of Voxtral-TTS."""

from collections.abc import Collection

from torch import nn

from voxport.model.config import SHAPE, values_of
from voxport.model.family import Approximation, ChunkedComponent, Decoder, Family, Release, VerificationPlan
from voxport.model.layers.basic import TokenEmbedding
from voxport.model.voxtral_tts import modules
from voxport.model.voxtral_tts.codec import Codec
from voxport.model.voxtral_tts.components import calls, components, constants
from voxport.model.voxtral_tts.config import Options, VoxtralTTSConfig, load_config, parse_config
from voxport.model.voxtral_tts.format import FORMAT
from voxport.model.voxtral_tts.mlx import MLX
from voxport.model.voxtral_tts.synthetic import SYNTHETIC

CODEC_ENCODER = "a codec encoder, which would make voices from recordings"
LANGUAGES = ("ar", "de", "en", "es", "fr", "hi", "it", "nl", "pt")
ENGLISH = {"casual", "cheerful", "neutral"}  # the published English voices have the names of styles
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


def _languages(config: VoxtralTTSConfig, voices: Collection[str]) -> set[str]:
    """As in `fr_male` and `casual_female`."""
    starts = {name.partition("_")[0] for name in voices}
    return {"en" if start in ENGLISH else start for start in starts & {*LANGUAGES, *ENGLISH}}


def build(
    graph: str, root: modules.VoxtralTTSWeights, config: VoxtralTTSConfig, options: Options, cache_length: int
) -> nn.Module:
    """The module of `graph`. Its weights are loaded in `root`; fusing removes some of them from there."""
    match graph:
        case "embed_text":
            return TokenEmbedding(root.mm_audio_embeddings["tok_embeddings"])
        case "embed_codes":
            table = root.get_submodule("mm_audio_embeddings.audio_codebook_embeddings.embeddings")
            return modules.CodeEmbedding(table, config.code_offsets)
        case "backbone":
            return modules.Backbone(root, config, cache_length)
        case "acoustic_step":
            return modules.AcousticStep(root.acoustic_transformer, config.acoustic.dim, options.euler_steps)
        case "codec":
            return Codec(root.audio_tokenizer, config.codec, options)
    raise ValueError(f"graph {graph!r}: unknown, expected one of {', '.join(modules.WEIGHTS_OF_GRAPH)}")


FAMILY = Family(
    name="voxtral_tts",
    title="Voxtral-TTS",
    licence="the published Voxtral-4B-TTS weights and voices are CC BY-NC 4.0, not for commercial use",
    task="text-to-speech",
    languages=LANGUAGES,
    config_languages=_languages,
    releases=(Release("mistralai/Voxtral-4B-TTS-2603", "cc-by-nc-4.0"),),
    format=FORMAT,
    parse_config=parse_config,
    load_config=load_config,
    options=Options,
    option_defaults=lambda config: {"euler_steps": config.acoustic.n_decoding_steps},
    constants=constants,
    weights=modules.VoxtralTTSWeights,
    weights_of_graph=modules.WEIGHTS_OF_GRAPH,
    components=components,
    build=build,
    longest_cache=lambda config: 131072,  # rows; beyond what the model was trained on
    default_cache=lambda config, options: 2048,  # rows; 150 s of speech after a prompt of 170
    verification=VerificationPlan(
        decoders=(Decoder("prefill", "decode_step", output="hidden"),),
        chunked=(ChunkedComponent("codec", "codec_step"),),
        approximations=(Approximation("euler_steps", "acoustic_step"),),
    ),
    parameter_groups={
        "mm_audio_embeddings.tok_embeddings.": "text embeddings",
        "mm_audio_embeddings.audio_codebook_embeddings.": "code embeddings",
        "layers.": "backbone",
        "norm.": "backbone",
        "acoustic_transformer.": "acoustic transformer",
        "audio_tokenizer.": "codec",
    },
    summary=_summary,
    calls=calls,
    synthetic=SYNTHETIC,
    mlx=MLX,
    unused={  # absent from the first release
        "audio_tokenizer.input_proj.": CODEC_ENCODER,
        "audio_tokenizer.encoder_blocks.": CODEC_ENCODER,
        "acoustic_transformer.time_embedding.": "time embeddings, which are computed at export",
    },
    high_precision=(  # small linears whose error would change sampling or the stop rule
        "acoustic_transformer.input_projection",
        "acoustic_transformer.acoustic_codebook_output",
        "acoustic_transformer.semantic_codebook_output",
    ),
    constant=("acoustic_transformer.time_projection",),  # folded at export; in no graph
)
