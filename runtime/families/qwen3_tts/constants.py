"""`Constants`: what the runtime needs of a Qwen3-TTS model besides names and shapes."""

from typing import Literal

from bundle.bounds import Codebooks, SampleRate
from bundle.manifest import ExportJob, Record
from runtime.families.base import Count, Id, parse_record

AUTO = "auto"  # the language where none is named


class Constants(Record):
    """`constants` of the manifest. Ids of `codec_*`, languages and speakers are rows of the talker's table.

    `first_codes` and `other_codes` are the numbers of codes in the first and in the other code books.
    """

    sample_rate: SampleRate
    samples_per_frame: Count
    dim: Count
    n_codebooks: Codebooks
    first_codes: Count
    other_codes: Count
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


def parse_constants(job: ExportJob) -> Constants:
    """Raises IntegrityError that names the constant."""
    return parse_record(Constants, job.constants)
