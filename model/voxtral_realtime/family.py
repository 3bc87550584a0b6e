"""The hooks of Voxtral-Realtime."""

from model.config import SHAPE, values_of
from model.family import Family
from model.verification_plan import ChunkedComponent, Decoder, VerificationPlan
from model.voxtral_realtime import weights
from model.voxtral_realtime.build import build
from model.voxtral_realtime.calls import calls
from model.voxtral_realtime.components import components, constants, longest_cache
from model.voxtral_realtime.config import Options, VoxtralRealtimeConfig, load_config, parse_config
from model.voxtral_realtime.format import FORMAT
from model.voxtral_realtime.synthetic import SYNTHETIC
from model.voxtral_realtime.weights import AUDIO

PARAMETER_GROUPS = {
    f"{AUDIO}.tok_embeddings.": "token embeddings and head",
    f"{AUDIO}.whisper_encoder.": "audio encoder",
    f"{AUDIO}.audio_language_projection.": "adapter",
    "layers.": "decoder",
    "norm.": "decoder",
}


def _summary(config: VoxtralRealtimeConfig) -> list[tuple[str, str]]:
    frames = f"{config.mel_frames_per_token} log-mel frames, {config.downsample} encoder frames"
    return [
        ("decoder", values_of(config, *SHAPE, "vocab_size", "sliding_window")),
        ("encoder", values_of(config.encoder, *SHAPE, "sliding_window")),
        ("front end", values_of(config.audio, "sampling_rate", "num_mel_bins", "window_size", "hop_length")),
        ("token", f"{config.samples_per_token} samples, {frames}"),
    ]


FAMILY = Family(
    name="voxtral_realtime",
    title="Voxtral-Realtime",
    licence="the published Voxtral-Mini-4B-Realtime weights are Apache 2.0",
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
    longest_cache=longest_cache,
    default_cache=longest_cache,
    verification=VerificationPlan(
        decoders=(Decoder("prefill", "decode_step", output="hidden"),),
        chunked=(ChunkedComponent("audio_encoder", "encode_chunk"),),
    ),
    parameter_groups=PARAMETER_GROUPS,
    summary=_summary,
    calls=calls,
    synthetic=SYNTHETIC,
    high_precision=weights.HIGH_PRECISION,
    constant=weights.CONSTANT,
)
