"""Constants of a Voxtral-TTS bundle: those of the manifest, and the special codes."""

from typing import Annotated, Literal

from pydantic import Field, ValidationError

from bundle.errors import IntegrityError
from bundle.manifest import ExportJob
from bundle.record import Record, first_fault

EMPTY_AUDIO, END_AUDIO, FIRST_CODE = 0, 1, 2  # the first two rows of every codebook are special codes
Count = Annotated[int, Field(gt=0, le=2**24)]
Id = Annotated[int, Field(ge=0, lt=2**31)]


class Constants(Record):
    """`constants` of the manifest, and the family options that change the frame loop."""

    sample_rate: Count
    samples_per_frame: Count
    dim: Count
    vocab_size: Count
    n_codebooks: Annotated[int, Field(ge=2, le=2**12)]
    semantic_codes: Count
    acoustic_levels: Annotated[int, Field(ge=2, le=2**16)]
    euler_steps: Count
    bos_id: Id
    audio_id: Id
    begin_audio_id: Id
    first_frame: Literal["audio_token", "prefill"]

    @property
    def extra_ids(self) -> list[int]:
        """Ids behind the prompt. Frame 0 follows the [AUDIO] token, or the prompt itself."""
        return [self.audio_id] if self.first_frame == "audio_token" else []


def parse_constants(job: ExportJob) -> Constants:
    """Raises IntegrityError that names the constant."""
    try:
        return Constants.model_validate({**job.constants, "first_frame": job.options.get("first_frame")})
    except ValidationError as error:
        raise IntegrityError(
            f"manifest.json: constants: {first_fault(error)}; export the bundle again"
        ) from None
