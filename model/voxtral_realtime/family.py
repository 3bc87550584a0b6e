"""The family Voxtral-Realtime."""

from voxport.bundle.constants.voxtral_realtime import ENCODER, LANGUAGES, LIVE_ENCODER, RealtimeConstants
from voxport.bundle.json_types import Json
from voxport.model.config import SHAPE, values_of
from voxport.model.family import ChunkedComponent, Decoder, Family, Release, VerificationPlan
from voxport.model.voxtral_realtime.config import (
    AUDIO,
    FLUSH_TOKENS,
    LOG_MEL_FLOOR,
    Options,
    VoxtralRealtimeConfig,
)
from voxport.model.voxtral_realtime.graphs import GRAPHS, Graph
from voxport.model.voxtral_realtime.layouts import LAYOUTS
from voxport.model.voxtral_realtime.modules import VoxtralRealtimeWeights
from voxport.model.voxtral_realtime.sizes import SIZES


class VoxtralRealtime(Family[VoxtralRealtimeWeights, VoxtralRealtimeConfig, Options]):
    name = "voxtral_realtime"
    title = "Voxtral-Realtime"
    licence = "the published Voxtral-Mini-4B-Realtime weights are Apache 2.0"
    task = "automatic-speech-recognition"
    languages = LANGUAGES
    releases = (Release("mistralai/Voxtral-Mini-4B-Realtime-2602", "apache-2.0"),)
    options = Options
    layouts = LAYOUTS
    verification = VerificationPlan(
        decoders=(Decoder("prefill", "decode_step", output="hidden"),),
        chunked=(ChunkedComponent(ENCODER, LIVE_ENCODER),),
    )
    parameter_groups = {
        f"{AUDIO}.tok_embeddings.": "token embeddings and head",
        f"{AUDIO}.whisper_encoder.": "audio encoder",
        f"{AUDIO}.audio_language_projection.": "adapter",
        "layers.": "decoder",
        "norm.": "decoder",
    }
    folded = ("layers.*.ada_rms_norm_t_cond.*",)

    def size_config(self, size: str) -> Json:
        return SIZES[size].params()

    def weights(self, config: VoxtralRealtimeConfig) -> VoxtralRealtimeWeights:
        return VoxtralRealtimeWeights(config)

    def graphs(self, config: VoxtralRealtimeConfig, options: Options) -> tuple[Graph, ...]:
        return GRAPHS

    def longest_cache(self, config: VoxtralRealtimeConfig) -> int:
        return config.sliding_window  # a cache has nothing to hold beyond it

    def default_cache(self, config: VoxtralRealtimeConfig, options: Options) -> int:
        return config.sliding_window

    def constants(self, config: VoxtralRealtimeConfig, options: Options) -> RealtimeConstants:
        audio = config.audio
        return RealtimeConstants(
            sample_rate=audio.sampling_rate,
            samples_per_token=config.samples_per_token,
            n_mels=audio.num_mel_bins,
            hop_length=audio.hop_length,
            window_size=audio.window_size,
            log_mel_least=audio.global_log_mel_max - LOG_MEL_FLOOR,
            dim=config.dim,
            vocab_size=config.vocab_size,
            flush_tokens=FLUSH_TOKENS,
            **config.schedule.model_dump(),
            delays_ms=options.delays_ms,
            delays=options.delays(config),
        )

    def summary(self, config: VoxtralRealtimeConfig) -> list[tuple[str, str]]:
        frames = f"{config.mel_frames_per_token} log-mel frames, {config.downsample} encoder frames"
        front_end = ("sampling_rate", "num_mel_bins", "window_size", "hop_length")
        return [
            ("decoder", values_of(config, *SHAPE, "vocab_size", "sliding_window")),
            ("encoder", values_of(config.encoder, *SHAPE, "sliding_window")),
            ("front end", values_of(config.audio, *front_end)),
            ("token", f"{config.samples_per_token} samples, {frames}"),
        ]


FAMILY = VoxtralRealtime()
