"""Constants of Voxtral-Realtime."""

from typing import Annotated

from pydantic import Field, model_validator

from voxport.bundle.bounds import (
    MAX_WINDOW_HOPS,
    Count,
    HopLength,
    Id,
    MelBins,
    SampleRate,
    SilentTokens,
    TokenSamples,
    WindowSize,
)
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import FamilyConstants

LANGUAGES = ("ar", "de", "en", "es", "fr", "hi", "it", "ja", "ko", "nl", "pt", "ru", "zh")
ENCODER, LIVE_ENCODER = "audio_encoder", "encode_chunk"  # the second one is in bundles for live streams


class RealtimeConstants(FamilyConstants):
    """`constants` of the manifest.

    A token covers `samples_per_token` samples (80 ms). The prompt covers `left_pad_tokens` of silence and
    the delay; `flush_tokens` of silence follow the audio. `delays` in tokens belong to `delays_ms`. Text
    begins at `first_text_id`.
    """

    sample_rate: SampleRate
    samples_per_token: TokenSamples
    n_mels: MelBins
    hop_length: HopLength
    window_size: WindowSize
    log_mel_least: Annotated[float, Field(allow_inf_nan=False)]
    dim: Count
    vocab_size: Count
    left_pad_tokens: SilentTokens
    flush_tokens: SilentTokens
    bos_id: Id
    eos_id: Id
    pad_id: Id
    word_id: Id
    first_text_id: Id
    delays_ms: tuple[Count, ...] = Field(min_length=1, max_length=32)
    delays: tuple[SilentTokens, ...]

    @model_validator(mode="after")
    def _check_consistency(self) -> "RealtimeConstants":
        if self.samples_per_token % self.hop_length:
            raise ValueError(
                f"samples_per_token {self.samples_per_token} is not a multiple of hop_length, "
                f"{self.hop_length}"
            )
        if self.window_size > MAX_WINDOW_HOPS * self.hop_length:
            raise ValueError(
                f"window_size {self.window_size}: expected at most {MAX_WINDOW_HOPS} times hop_length, "
                f"{self.hop_length}"
            )
        if len(self.delays) != len(self.delays_ms):
            raise ValueError(f"{len(self.delays)} delays in tokens, expected {len(self.delays_ms)} as in ms")
        return self

    @property
    def frames_per_token(self) -> int:
        return self.samples_per_token // self.hop_length

    @property
    def seconds_per_token(self) -> float:
        return self.samples_per_token / self.sample_rate

    def prompt_length(self, delay: int) -> int:
        """Positions of the prompt with delay number `delay`: BOS, the silence before the audio, and the
        delay.
        """
        return 1 + self.left_pad_tokens + self.delays[delay]

    def delay_index(self, delay_ms: int | None, live: bool) -> int:
        """Number of a delay in `delays_ms`. Raises UsageError that lists them.

        None is the first for live audio. A recording needs no low delay, so there it is the last.
        """
        if delay_ms is not None and delay_ms not in self.delays_ms:
            raise UsageError(
                f"delay_ms {delay_ms}: this bundle has delays of {', '.join(map(str, self.delays_ms))} ms; "
                "take one of them, or export it with another",
                field="delay_ms",
            )
        if delay_ms is None:
            return 0 if live else len(self.delays_ms) - 1
        return self.delays_ms.index(delay_ms)
