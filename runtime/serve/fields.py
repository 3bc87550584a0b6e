"""The fields of requests: those that are taken, and those that are refused because they have no effect."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)
from pydantic_core import PydanticCustomError
from starlette.datastructures import FormData

from voxport.runtime.serve.errors import ApiError

UNKNOWN = "unknown_field"
CODES = {"extra_forbidden": UNKNOWN, "unsupported_value": "unsupported_value"}
LIST = "[]"  # the end of the names of form fields that may be repeated
SpeechFormat = Literal["mp3", "opus", "flac", "wav", "pcm"]
Fields = TypeVar("Fields", bound=BaseModel)


def only(allowed: tuple[object, ...], reason: str, code: str = "invalid_value") -> AfterValidator:
    """A field that is refused with `reason` if its value is not one of `allowed`."""

    def check(value: object) -> object:
        if value not in allowed:
            raise PydanticCustomError(code, "{reason}", {"reason": reason})
        return value

    return AfterValidator(check)


def _empty_if_null(value: object) -> object:
    return {} if value is None else value


NullIsMissing = BeforeValidator(_empty_if_null)  # for an object of which every field may be missing
Unsupported = Annotated[
    object, only((None, "", []), "is not supported; leave it out", code="unsupported_value")
]


class VoiceId(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: str


class SpeechBody(BaseModel):
    """POST /v1/audio/speech. `seed`, `max_frames` and `language` extend the OpenAI API."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)
    model: str
    input: str
    voice: str | VoiceId | None = None
    response_format: SpeechFormat = "mp3"
    stream_format: Literal["audio", "sse"] = "audio"
    speed: Annotated[float, only((1,), "this server speaks at speed 1 only; leave it out")] = 1
    instructions: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    max_frames: Annotated[int, Field(ge=1, le=2**31)] | None = None
    language: str | None = None

    @property
    def voice_name(self) -> str | None:
        return self.voice.id if isinstance(self.voice, VoiceId) else self.voice

    @property
    def instruct(self) -> str | None:
        """Some clients send an empty text if there are no instructions."""
        return self.instructions or None


class TranscriptionBody(BaseModel):
    """POST /v1/audio/transcriptions, besides the recording. `delay_ms` extends the OpenAI API."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)
    model: str
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    granularities: tuple[Literal["word", "segment"], ...] = Field((), alias="timestamp_granularities[]")
    stream: bool = False
    delay_ms: Annotated[int, Field(ge=0, lt=10**6)] | None = None
    language: str = ""
    temperature: Annotated[float, only((0,), "the likeliest text is taken; expected 0")] = 0
    prompt: Annotated[str, only(("",), "the models take none; leave it out")] = ""


class VoiceBody(BaseModel):
    """POST /v1/audio/voices, besides the recording. The consent of a speaker is not looked up."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Annotated[str, Field(min_length=1, max_length=100)]
    model: str | None = None
    transcript: str | None = None
    type: Literal["audio_sample"] = "audio_sample"
    consent: str | None = None

    @field_validator("name", mode="before")
    @classmethod
    def _is_printable(cls, name: str) -> str:
        if not name.isprintable():
            raise PydanticCustomError("invalid_value", "expected printable characters")
        return name.strip()


def parse_json(kind: type[Fields], content: bytes) -> Fields:
    """Raises ApiError that names the field."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        raise wrong_field(error) from None


def parse_form(kind: type[Fields], form: FormData) -> Fields:
    """The texts of a form. The last text of a field counts, unless the field is a list. Raises ApiError."""
    texts: dict[str, str] = {}
    lists: dict[str, list[str]] = {}
    for name, value in form.multi_items():
        if isinstance(value, str) and name.endswith(LIST):
            lists.setdefault(name, []).append(value)
        elif isinstance(value, str):
            texts[name] = value
    try:
        return kind.model_validate({**texts, **lists})
    except ValidationError as error:
        raise wrong_field(error) from None


def parse_message(kind: type[Fields], message: Mapping[str, object]) -> Fields:
    """The fields of a message of a socket. Raises ApiError with the path of the field."""
    try:
        return kind.model_validate(message)
    except ValidationError as error:
        raise wrong_field(error, is_nested=True) from None


def wrong_field(error: ValidationError, is_nested: bool = False) -> ApiError:
    """Names the first field of a request that is wrong, by its path if fields are nested."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = list(map(str, first["loc"]))
    param = (".".join(path) if is_nested else path[0])[:100] if path else None
    return ApiError(
        400, f"{param or 'body'}: {first['msg']}", CODES.get(first["type"], "invalid_value"), param
    )


def check_length(characters: int, limit: int, field: str) -> None:
    """Raises ApiError if a text is too long."""
    if characters > limit:
        reason = f"{field}: has {characters} characters, expected at most {limit}"
        raise ApiError(400, reason, "string_above_max_length", field)
