"""Constants of Voxtral-TTS."""

from typing import Annotated, Literal

from pydantic import Field

from voxport.bundle.bounds import Codebooks, Count, EulerSteps, Id, SampleRate
from voxport.bundle.manifest import FamilyConstants

LANGUAGES = ("ar", "de", "en", "es", "fr", "hi", "it", "nl", "pt")
EMPTY_AUDIO, END_AUDIO, FIRST_CODE = 0, 1, 2  # the first two rows of every codebook are special codes


class VoxtralConstants(FamilyConstants):
    """`constants` of the manifest."""

    sample_rate: SampleRate
    samples_per_frame: Count
    dim: Count
    vocab_size: Count
    n_codebooks: Codebooks
    semantic_codes: Count
    acoustic_levels: Annotated[int, Field(ge=2, le=2**16)]
    euler_steps: EulerSteps
    bos_id: Id
    audio_id: Id
    begin_audio_id: Id
    first_frame: Literal["audio_token", "prefill"]

    @property
    def code_sizes(self) -> tuple[int, ...]:
        """Number of values of each code of a frame."""
        acoustic = self.acoustic_levels + FIRST_CODE
        return (self.semantic_codes + FIRST_CODE, *[acoustic] * (self.n_codebooks - 1))

    @property
    def extra_ids(self) -> list[int]:
        """Ids behind the prompt. Frame 0 follows the [AUDIO] token, or the prompt itself."""
        return [self.audio_id] if self.first_frame == "audio_token" else []
