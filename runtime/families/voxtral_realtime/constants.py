"""The constants of a Voxtral-Realtime bundle, checked once."""

from typing import Annotated

from pydantic import Field, ValidationError, model_validator

from bundle.errors import IntegrityError, UsageError
from bundle.manifest import ExportJob
from bundle.record import Record, first_fault
from runtime.audio.mel import MelSettings

Count = Annotated[int, Field(gt=0, le=2**24)]
Id = Annotated[int, Field(ge=0, lt=2**31)]


class Constants(Record):
    """`constants` of the manifest.

    A token covers `samples_per_token` samples (80 ms). The prompt covers `left_pad_tokens` of silence and
    the delay; `flush_tokens` of silence follow the audio. `delays` in tokens belong to `delays_ms`. Text
    begins at `first_text_id`.
    """

    sample_rate: Count
    samples_per_token: Count
    n_mels: Count
    hop_length: Count
    window_size: Count
    log_mel_least: float
    dim: Count
    vocab_size: Count
    left_pad_tokens: Count
    flush_tokens: Count
    bos_id: Id
    eos_id: Id
    pad_id: Id
    word_id: Id
    first_text_id: Id
    delays_ms: tuple[Count, ...] = Field(min_length=1)
    delays: tuple[Count, ...]

    @model_validator(mode="after")
    def _check_consistency(self) -> "Constants":
        if self.samples_per_token % self.hop_length:
            raise ValueError(
                f"samples_per_token {self.samples_per_token} is not a multiple of hop_length, "
                f"{self.hop_length}"
            )
        if len(self.delays) != len(self.delays_ms):
            raise ValueError(f"{len(self.delays)} delays in tokens, expected {len(self.delays_ms)} as in ms")
        return self

    @property
    def mel(self) -> MelSettings:
        return MelSettings(
            self.sample_rate, self.n_mels, self.window_size, self.hop_length, self.log_mel_least
        )

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

    def delay_index(self, delay_ms: int | None) -> int:
        """Number of a delay in `delays_ms`; None is the first. Raises UsageError that lists them."""
        if delay_ms is not None and delay_ms not in self.delays_ms:
            listed = ", ".join(map(str, self.delays_ms))
            raise UsageError(
                f"delay_ms {delay_ms}: this bundle has delays of {listed} ms; export it with this delay",
                field="delay_ms",
            )
        return 0 if delay_ms is None else self.delays_ms.index(delay_ms)


def parse_constants(job: ExportJob) -> Constants:
    """Raises IntegrityError that names the constant."""
    try:
        return Constants.model_validate(job.constants)
    except ValidationError as error:
        raise IntegrityError(
            f"manifest.json: constants: {first_fault(error)}; export the bundle again"
        ) from None
