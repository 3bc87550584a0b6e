"""Constants of Qwen3-TTS."""

from typing import Annotated, Literal

from pydantic import Field

from voxport.bundle.bounds import Codebooks, Count, Id, SampleRate
from voxport.bundle.manifest import FamilyConstants

LANGUAGES = ("de", "en", "es", "fr", "it", "ja", "ko", "pt", "ru", "zh")
# the published tokenizer splits a text into its matches
PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WINDOW_CONTEXT = 25  # frames that a window of `--split six` repeats, as in the published package
Factor = Annotated[float, Field(gt=0, le=100)]
Temperature = Annotated[float, Field(ge=0, le=100)]
TopK = Annotated[int, Field(ge=0, le=2**24)]
TopP = Annotated[float, Field(gt=0, le=1)]


class SamplingConstants(FamilyConstants):
    """The defaults of a checkpoint. `others_*` are for the code predictor. Temperature 0 is greedy."""

    temperature: Temperature
    top_k: TopK
    top_p: TopP
    repetition_penalty: Factor
    others_temperature: Temperature
    others_top_k: TopK
    others_top_p: TopP


class QwenConstants(FamilyConstants):
    """`constants` of the manifest. Ids of `codec_*`, languages and speakers are rows of the talker's table.

    `vocab_size` is the number of these rows. `first_codes` and `other_codes` are the numbers of codes in the
    first and in the other code books. Speakers and languages are in lower case, as the published package
    compares them.
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
    max_frames: Count  # for one text

    @property
    def code_sizes(self) -> tuple[int, ...]:
        """Number of values of each code of a frame."""
        return (self.first_codes, *[self.other_codes] * (self.n_codebooks - 1))

    @property
    def streams_text(self) -> bool:
        """Whether text is added to the frames while they are made, by default of the published package."""
        return self.kind == "base"
