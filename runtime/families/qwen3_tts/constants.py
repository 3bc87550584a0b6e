"""`Constants`: what the runtime needs of a Qwen3-TTS model besides names and shapes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from voxport.bundle.bounds import Codebooks, SampleRate
from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Record, first_fault
from voxport.runtime.families.base import Count, Id, Values, parse_record
from voxport.runtime.sampler import SamplerSettings

OTHERS, SUB = "others_", "sub_"  # before a setting of the code predictor: in a manifest, in a request
MIN_TEMPERATURE = 1e-3  # above 0; float32 logits divided by a far lower one are infinite
Positive = Annotated[float, Field(gt=0, le=100)]
TopK = Annotated[int, Field(ge=0, le=2**24)]
TopP = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class Sampling:
    """How the codes of a frame are drawn: the first of them, and the others, which have no penalty."""

    first: SamplerSettings
    others: SamplerSettings


class SamplingConstants(Record):
    """The defaults of a checkpoint. `others_*` are for the code predictor. Temperature 0 is greedy."""

    temperature: Annotated[float, Field(ge=0, le=100)]
    top_k: TopK
    top_p: TopP
    repetition_penalty: Positive
    others_temperature: Annotated[float, Field(ge=0, le=100)]
    others_top_k: TopK
    others_top_p: TopP

    @property
    def sampling(self) -> Sampling:
        """The settings of the sampler."""
        return Sampling(
            SamplerSettings(self.temperature, self.top_k, self.top_p, self.repetition_penalty),
            SamplerSettings(self.others_temperature, self.others_top_k, self.others_top_p),
        )


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
    max_frames: Count | None = None  # per text; older bundles have no limit

    @property
    def code_sizes(self) -> tuple[int, ...]:
        """Number of values of each code of a frame."""
        return (self.first_codes, *[self.other_codes] * (self.n_codebooks - 1))

    @property
    def sampling(self) -> Sampling:
        """The defaults of the checkpoint."""
        return self.sampling_defaults.sampling

    def sampling_with(self, changes: Mapping[str, float]) -> Sampling:
        """The defaults with other values by name, fields of `SamplingConstants` with `sub_` for `others_`.

        Raises UsageError that names a wrong one.
        """
        names = {_manifest_name(name): name for name in changes}
        values = {key: changes[name] for key, name in names.items()}
        try:
            found = SamplingConstants.model_validate(self.sampling_defaults.model_dump() | values)
        except ValidationError as error:
            key, _, reason = first_fault(error).partition(": ")
            name, reason = names[key], reason.removeprefix("Input ")
            raise UsageError(f"{name} {changes[name]}: {reason}", field=name) from None
        for name in changes:
            if name.endswith("temperature") and 0 < changes[name] < MIN_TEMPERATURE:
                raise UsageError(
                    f"{name} {changes[name]}: expected 0, or at least {MIN_TEMPERATURE}", field=name
                )
        return found.sampling

    @property
    def streams_text(self) -> bool:
        """Whether text is added to the frames while they are made, by default of the published package."""
        return self.kind == "base"


def _manifest_name(name: str) -> str:
    return OTHERS + name.removeprefix(SUB) if name.startswith(SUB) else name


def parse_constants(constants: Values, options: Values) -> Constants:
    """Raises IntegrityError that names the constant."""
    return parse_record(Constants, constants)
