"""The hooks of Voxtral-Realtime."""

from torch import nn

from voxport.model.config import SHAPE, values_of
from voxport.model.family import ChunkedComponent, Decoder, Family, Release, VerificationPlan
from voxport.model.layers.basic import TokenEmbedding
from voxport.model.voxtral_realtime import modules
from voxport.model.voxtral_realtime.components import calls, components, constants, longest_cache
from voxport.model.voxtral_realtime.config import Options, VoxtralRealtimeConfig, load_config, parse_config
from voxport.model.voxtral_realtime.format import FORMAT
from voxport.model.voxtral_realtime.mlx import MLX
from voxport.model.voxtral_realtime.synthetic import SYNTHETIC


def _summary(config: VoxtralRealtimeConfig) -> list[tuple[str, str]]:
    frames = f"{config.mel_frames_per_token} log-mel frames, {config.downsample} encoder frames"
    return [
        ("decoder", values_of(config, *SHAPE, "vocab_size", "sliding_window")),
        ("encoder", values_of(config.encoder, *SHAPE, "sliding_window")),
        ("front end", values_of(config.audio, "sampling_rate", "num_mel_bins", "window_size", "hop_length")),
        ("token", f"{config.samples_per_token} samples, {frames}"),
    ]


def build(
    graph: str,
    root: modules.VoxtralRealtimeWeights,
    config: VoxtralRealtimeConfig,
    options: Options,
    cache_length: int,
) -> nn.Module:
    """The module of `graph`. Its weights are loaded in `root`; fusing removes some of them from there."""
    match graph:
        case "embed_tokens":
            return TokenEmbedding(root.audio.tok_embeddings)
        case "encoder":
            return modules.Encoder(root.audio, config)
        case "decoder":
            return modules.Decoder(root, config, options, cache_length)
    raise ValueError(f"graph {graph!r}: unknown, expected one of {', '.join(modules.WEIGHTS_OF_GRAPH)}")


FAMILY = Family(
    name="voxtral_realtime",
    title="Voxtral-Realtime",
    licence="the published Voxtral-Mini-4B-Realtime weights are Apache 2.0",
    task="automatic-speech-recognition",
    languages=("ar", "de", "en", "es", "fr", "hi", "it", "ja", "ko", "nl", "pt", "ru", "zh"),
    releases=(Release("mistralai/Voxtral-Mini-4B-Realtime-2602", "apache-2.0"),),
    format=FORMAT,
    parse_config=parse_config,
    load_config=load_config,
    options=Options,
    constants=constants,
    weights=modules.VoxtralRealtimeWeights,
    weights_of_graph=modules.WEIGHTS_OF_GRAPH,
    components=components,
    build=build,
    longest_cache=longest_cache,
    default_cache=lambda config, options: longest_cache(config),
    verification=VerificationPlan(
        decoders=(Decoder("prefill", "decode_step", output="hidden"),),
        chunked=(ChunkedComponent("audio_encoder", "encode_chunk"),),
    ),
    parameter_groups={
        f"{modules.AUDIO}.tok_embeddings.": "token embeddings and head",
        f"{modules.AUDIO}.whisper_encoder.": "audio encoder",
        f"{modules.AUDIO}.audio_language_projection.": "adapter",
        "layers.": "decoder",
        "norm.": "decoder",
    },
    summary=_summary,
    calls=calls,
    synthetic=SYNTHETIC,
    mlx=MLX,
    constant=("layers.*.ada_rms_norm_t_cond.*",),  # folded at export; in no graph
)
