"""The family Voxtral-Realtime."""

from typing import Any

from voxport.bundle.constants.voxtral_realtime import ENCODER, LANGUAGES, LIVE_ENCODER, RealtimeConstants
from voxport.model.config import SHAPE, values_of
from voxport.model.family import ChunkedComponent, Decoder, Family, Release, VerificationPlan
from voxport.model.voxtral_realtime.config import (
    AUDIO,
    FLUSH_TOKENS,
    LOG_MEL_FLOOR,
    Options,
    VoxtralRealtimeConfig,
    parse_config,
)
from voxport.model.voxtral_realtime.graphs import GRAPHS, Graph
from voxport.model.voxtral_realtime.layouts import LAYOUTS
from voxport.model.voxtral_realtime.modules import VoxtralRealtimeWeights
from voxport.model.voxtral_realtime.synthetic import VoxtralRealtimeSynthetic

CALLS = """\
## Order of calls

Audio is mono, {rate} Hz, float32 in [-1, 1]. One token is {samples} samples. d is the delay in tokens
({delays}).

1. Pad with silence: {left} * {samples} zeros before the audio; zeros after it up to a multiple of {samples},
   and then (d + {behind}) * {samples} more.
2. Compute the log-mel spectrogram: {frames} frames per token, 0 to {frames} N - 1 for N tokens of padded
   audio.
   - Frame k is centred at sample {hop} k. Zeros extend both ends.
   - Multiply by a periodic Hann window of {window} samples; take |DFT|^2 of {bins} bins.
   - Apply {mels} triangular filters between {mels_2} points equally spaced from 0 to {nyquist} Hz on Slaney's
     mel scale (3 f / 200 below 1000 Hz, 15 + 27 ln(f / 1000) / ln 6.4 above), each times 2 / (its width in
     Hz).
   - Take log10 of at least 1e-10, raise it to at least {least}, then compute (x + 4) / 4.
3. Call `audio_encoder(mel, position)` with {frames} frames per token and as many tokens as the bounds of T
   allow. For one token call `encode_chunk`, if the bundle has it. `position` counts the tokens encoded
   before. The embeddings belong to positions 0, 1, 2 ... of the decoder.
4. The prompt has {left} + d + 1 ids: {bos} once, then the id {pad} {left} + d times. Call
   `prefill(embed_tokens(ids) + embeddings of positions 0 ... {left} + d, position=0, delay)`. `delay` is an
   index into the delays above. If the bound of S is less, call `decode_step` for the other rows. The argmax
   of the last `logits` is the first token.
5. For each position after the prompt call `decode_step(embed_tokens(previous token) + embedding, position,
   delay)` and take the argmax, up to the last embedding. {eos} does not end the transcript.
6. Text: an id from {text} on is bytes: `token_bytes`, in base64, of the entry of `vocab` in `tekken.json`
   with `rank` id - {text}. Join bytes before decoding them as UTF-8: a character may span tokens. All other
   ids have no text; {word} begins a word, and {pad} means that no text is due. The first token is due after
   {ms} ms of audio, each further one {ms} ms later.

A new recording starts at position 0. States need not be cleared if they are finite. The caches are sliding
windows: `position` may grow up to 16,773,119 in the decoder and 4,193,279 in the encoder (93 hours).
"""


class VoxtralRealtime(Family[VoxtralRealtimeWeights, VoxtralRealtimeConfig, Options]):
    name = "voxtral_realtime"
    title = "Voxtral-Realtime"
    licence = "the published Voxtral-Mini-4B-Realtime weights are Apache 2.0"
    task = "automatic-speech-recognition"
    languages = LANGUAGES
    releases = (Release("mistralai/Voxtral-Mini-4B-Realtime-2602", "apache-2.0"),)
    options = Options
    layouts = LAYOUTS
    synthetic = VoxtralRealtimeSynthetic()
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

    def parse_config(self, content: Any, source: str) -> VoxtralRealtimeConfig:
        return parse_config(content, source)

    def weights(self, config: VoxtralRealtimeConfig) -> VoxtralRealtimeWeights:
        return VoxtralRealtimeWeights(config)

    def graphs(self, config: VoxtralRealtimeConfig, options: Options) -> tuple[Graph, ...]:
        return GRAPHS

    def longest_cache(self, config: VoxtralRealtimeConfig) -> int:
        return config.sliding_window  # a cache has nothing to hold beyond it

    def default_cache(self, config: VoxtralRealtimeConfig, options: Options) -> int:
        return config.sliding_window

    def constants(self, config: VoxtralRealtimeConfig, options: Options) -> RealtimeConstants:
        audio, schedule = config.audio, config.schedule
        return RealtimeConstants(
            sample_rate=audio.sampling_rate,
            samples_per_token=config.samples_per_token,
            n_mels=audio.num_mel_bins,
            hop_length=audio.hop_length,
            window_size=audio.window_size,
            log_mel_least=audio.global_log_mel_max - LOG_MEL_FLOOR,
            dim=config.dim,
            vocab_size=config.vocab_size,
            left_pad_tokens=schedule.left_pad_tokens,
            flush_tokens=FLUSH_TOKENS,
            bos_id=schedule.bos_id,
            eos_id=schedule.eos_id,
            pad_id=schedule.pad_id,
            word_id=schedule.word_id,
            first_text_id=schedule.first_text_id,
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

    def calls(self, config: VoxtralRealtimeConfig, options: Options) -> str:
        constants = self.constants(config, options)
        pairs = zip(constants.delays_ms, constants.delays, strict=True)
        return CALLS.format(
            rate=constants.sample_rate,
            samples=constants.samples_per_token,
            delays=", ".join(f"{index}: {ms} ms, d = {tokens}" for index, (ms, tokens) in enumerate(pairs)),
            left=constants.left_pad_tokens,
            behind=constants.flush_tokens + 1,
            hop=constants.hop_length,
            window=constants.window_size,
            bins=constants.window_size // 2 + 1,
            mels=constants.n_mels,
            mels_2=constants.n_mels + 2,
            nyquist=constants.sample_rate // 2,
            least=constants.log_mel_least,
            frames=constants.samples_per_token // constants.hop_length,
            bos=constants.bos_id,
            pad=constants.pad_id,
            eos=constants.eos_id,
            word=constants.word_id,
            text=constants.first_text_id,
            ms=1000 * constants.samples_per_token // constants.sample_rate,
        )


FAMILY = VoxtralRealtime()
