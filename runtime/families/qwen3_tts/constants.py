"""`Constants`: what the runtime needs of a Qwen3-TTS model besides names and shapes."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from bundle.bounds import Codebooks, SampleRate
from bundle.manifest import ExportJob, Record
from runtime.families.base import Count, Id, parse_record
from runtime.sampler import SamplerSettings

AUTO = "auto"  # the language where none is named
Positive = Annotated[float, Field(gt=0, le=100)]
TopK = Annotated[int, Field(ge=0, le=2**24)]
TopP = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Sampling:
    """How the codes of a frame are drawn: the first of them, and the others, which have no penalty."""

    first: SamplerSettings
    others: SamplerSettings


class SamplingConstants(Record):
    """The defaults of a checkpoint. `others_*` are those of the code predictor. Temperature 0 is greedy."""

    temperature: Annotated[float, Field(ge=0, le=100)]
    top_k: TopK
    top_p: TopP
    repetition_penalty: Positive
    others_temperature: Annotated[float, Field(ge=0, le=100)]
    others_top_k: TopK
    others_top_p: TopP


class Constants(Record):
    """`constants` of the manifest. Ids of `codec_*`, languages and speakers are rows of the talker's table.

    `vocab_size` is the number of these rows. `first_codes` and `other_codes` are the numbers of codes in the
    first and in the other code books.
    """

    sample_rate: SampleRate
    samples_per_frame: Count
    dim: Count
    n_codebooks: Codebooks
    vocab_size: Count
    first_codes: Count
    other_codes: Count
    text_vocab_size: Count
    im_start_id: Id
    im_end_id: Id
    assistant_id: Id
    tts_pad_id: Id
    tts_bos_id: Id
    tts_eos_id: Id
    codec_pad_id: Id
    codec_bos_id: Id
    codec_eos_token_id: Id
    codec_think_id: Id
    codec_nothink_id: Id
    codec_think_bos_id: Id
    codec_think_eos_id: Id
    codec_language_id: dict[str, Id]
    speakers: dict[str, Id]
    dialects: dict[str, str]
    kind: Literal["base", "custom_voice", "voice_design"]
    size: str
    sampling_defaults: SamplingConstants

    @property
    def sampling(self) -> Sampling:
        """The defaults of the checkpoint."""
        found = self.sampling_defaults
        return Sampling(
            SamplerSettings(found.temperature, found.top_k, found.top_p, found.repetition_penalty),
            SamplerSettings(found.others_temperature, found.others_top_k, found.others_top_p),
        )

    @property
    def streams_text(self) -> bool:
        """Whether text is added to the frames while they are made, by default of the published package."""
        return self.kind == "base"


def parse_constants(job: ExportJob) -> Constants:
    """Raises IntegrityError that names the constant."""
    return parse_record(Constants, job.constants)
