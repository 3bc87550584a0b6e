"""The fields of requests: those that have an effect, hints without one, and those that are refused."""

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from starlette.datastructures import FormData

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.tempo import MAX_SPEED, MIN_SPEED
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.ignored import UNKNOWN, as_header

UNSUPPORTED = "unsupported_value"
CODES = {"extra_forbidden": UNKNOWN, UNSUPPORTED: UNSUPPORTED}
LIST = "[]"  # the end of the names of form fields that may be repeated
WORD = re.compile(r"\w+")
TranscriptFormat = Literal["json", "text", "srt", "verbose_json", "vtt"]
SpeechFormat = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]
OTHER_FORMATS = {"ogg": "opus"}  # other names
FORMAT_NAMES = "response_format", "output_format", "format", "audio_format", "encoding", "download_format"
NO_SPEAKERS = "the models name no speakers"
MAX_DRAWN_SEED = 2**31  # every language reads smaller integers
Fields = TypeVar("Fields", bound="RequestFields")
HINT = "hint"  # marks a field without an effect whose value is checked


def only(allowed: tuple[object, ...], reason: str, code: str = "invalid_value") -> AfterValidator:
    """A field that is refused with `reason` if its value is not one of `allowed`."""

    def check(value: object) -> object:
        if value not in allowed:
            raise PydanticCustomError(code, "{reason}", {"reason": reason})
        return value

    return AfterValidator(check)


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _format(name: object) -> object:
    return OTHER_FORMATS.get(name, name) if isinstance(name, str) else name


def _drawn_if_negative(seed: int) -> int:
    return secrets.randbelow(MAX_DRAWN_SEED) if seed < 0 else seed


def _words(texts: object) -> object:
    """The words of all texts: clients repeat a list's field, or write it with commas or as JSON."""
    return [word for text in texts for word in WORD.findall(text)] if isinstance(texts, list) else texts


def _without_speakers(name: object) -> object:
    if name == "diarized_json":
        raise PydanticCustomError(UNSUPPORTED, "{reason}", {"reason": NO_SPEAKERS})
    return name


LowerCase = BeforeValidator(_lower)
SpeechFormatField = Annotated[SpeechFormat, BeforeValidator(_format), LowerCase]
NoTimes = Annotated[bool, only((False,), "speech has no times of words", UNSUPPORTED)]
Unsupported = Annotated[object, only((None, "", []), "is not supported; leave it out", UNSUPPORTED)]


def format_field(default: SpeechFormat) -> Any:
    """The format of speech, which other services name otherwise."""
    return Field(default, validation_alias=AliasChoices(*FORMAT_NAMES))


class RequestFields(BaseModel):
    """Fields of a request. Null and an empty text are as a missing field.

    A field that is unknown, or marked `HINT`, has no effect.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)
    null_resets: ClassVar[bool] = False  # whether null is a value of the fields that have it as one
    _ignored: dict[str, None] = PrivateAttr(default_factory=dict)
    _is_strict: bool = PrivateAttr(False)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        given = {name: value for name, value in data.items() if value != ""}
        return {name: value for name, value in given.items() if value is not None or cls._resets(name)}

    @classmethod
    def _resets(cls, name: str) -> bool:
        """Whether null is a value of the field."""
        field = cls.model_fields.get(name) if cls.null_resets else None
        return field is not None and NoneType in get_args(field.annotation)

    @property
    def ignored(self) -> tuple[str, ...]:
        """Names of the fields without effect. A nested one has a path."""
        return tuple(self._ignored)

    def ignore(self, name: str, reason: str = "has no effect; leave it out", code: str = UNKNOWN) -> None:
        """Counts a field as one without effect. Raises ApiError if the server is strict."""
        name = as_header(name)
        if self._is_strict:
            raise ApiError(400, f"{name}: {reason}", code, name)
        self._ignored[name] = None

    def ignore_all(self, names: Iterable[str]) -> Self:
        """Counts each of the fields as one without effect. Raises ApiError if the server is strict."""
        for name in names:
            self.ignore(name)
        return self

    def is_taken(self, name: str, check: Callable[[], object]) -> bool:
        """Whether the check of a field passes; else the field has no effect. Raises what `check` raises if
        the server is strict.
        """
        try:
            check()
        except (ApiError, UsageError):
            if self._is_strict:
                raise
            self.ignore(name)
            return False
        return True

    def with_hints(self, is_strict: bool) -> Self:
        """Looks for fields without effect. Raises ApiError if the server is strict."""
        self._is_strict = is_strict
        return self.ignore_all(self._hints(""))

    def _hints(self, path: str) -> Iterator[str]:
        for name in self.model_extra or ():
            yield f"{path}{name}"
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if isinstance(value, RequestFields):
                yield from value._hints(f"{path}{name}.")
            elif HINT in field.metadata and value != field.default:
                yield f"{path}{name}"


class VoiceId(RequestFields):
    id: str | None = None


class SpeechFields(RequestFields):
    """How a text is spoken. `seed` and `language` extend the OpenAI API; a seed below 0 draws one.

    `voice_id` and `ref_audio`, base64 of a recording whose voice speaks, are fields of Mistral's API.
    `ref_audio` and `ref_text`, its transcript, are fields of vLLM-Omni's.
    """

    model: str | None = None
    voice: str | VoiceId | None = None
    voice_id: str | None = None
    ref_audio: str | None = None
    ref_text: str | None = None
    response_format: SpeechFormatField = format_field("mp3")
    sample_rate: Annotated[int, Field(ge=8_000, le=48_000)] | None = None
    num_channels: Annotated[int, only((1,), "speech has one channel", UNSUPPORTED)] = 1
    word_timestamps: NoTimes = False
    return_timestamps: NoTimes = False
    speed: Annotated[float, Field(ge=MIN_SPEED, le=MAX_SPEED)] = 1
    instructions: str | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63), AfterValidator(_drawn_if_negative)] = 0
    language: str | None = None

    @property
    def voice_name(self) -> str | None:
        return (self.voice.id if isinstance(self.voice, VoiceId) else self.voice) or self.voice_id


class SpeechBody(SpeechFields):
    """POST /v1/audio/speech. `max_frames` extends the OpenAI API; `stream` is a field of Mistral's."""

    input: str
    stream_format: Annotated[Literal["audio", "sse"], LowerCase] = "audio"
    stream: bool = False
    n: Annotated[int, only((1,), "one answer is made", UNSUPPORTED)] = 1
    max_frames: Annotated[int, Field(ge=1, le=2**31)] | None = None


class TranscriptionBody(RequestFields):
    """POST /v1/audio/transcriptions, besides the recording. `delay_ms` extends the OpenAI API."""

    model_config = ConfigDict(frozen=True)
    model: str | None = None
    response_format: Annotated[TranscriptFormat, BeforeValidator(_without_speakers), LowerCase] = "json"
    timestamp_granularities: Annotated[tuple[Literal["word", "segment"], ...], BeforeValidator(_words)] = ()
    stream: bool = False
    delay_ms: Annotated[int, Field(ge=0, lt=10**6)] | None = None
    language: str | None = None
    languages: tuple[str, ...] = ()
    prompt: str | None = None
    keywords: tuple[str, ...] = ()
    temperature: Annotated[float, HINT] = 0
    # without these fields a client would get another answer than it asks for
    diarize: Annotated[bool, only((False,), NO_SPEAKERS, UNSUPPORTED)] = False
    translate: Annotated[bool, only((False,), "the models do not translate", UNSUPPORTED)] = False
    task: Annotated[str, only(("transcribe",), "expected transcribe", UNSUPPORTED)] = "transcribe"
    target_language: Unsupported = None
    known_speaker_names: Unsupported = None
    known_speaker_references: Unsupported = None
    speaker_references: Unsupported = None
    file_url: Unsupported = None
    file_id: Unsupported = None
    url: Unsupported = None

    @property
    def is_mistral(self) -> bool:
        """Whether the client is one of Mistral, which always sends `diarize`."""
        return "diarize" in self.model_fields_set

    @property
    def context(self) -> str:
        """Names and words that may be spoken."""
        return ", ".join(filter(None, (self.prompt, *self.keywords)))


class VoicePage(RequestFields):
    """The query of GET /v1/audio/voices. Clients of Mistral ask for a page of at most `limit` voices."""

    model: str | None = None
    limit: Annotated[int, Field(ge=1)] | None = None
    offset: Annotated[int, Field(ge=0)] = 0
    type: Literal["all", "preset", "custom"] = "all"


class VoiceBody(RequestFields):
    """POST /v1/audio/voices, besides the recording. The consent of a speaker is not looked up."""

    model_config = ConfigDict(frozen=True)
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


def parse_json(kind: type[Fields], content: bytes, is_strict: bool = False) -> Fields:
    """Raises ApiError that names the field."""
    return _parsed(partial(kind.model_validate_json, content), is_strict)


def parse_form(kind: type[Fields], form: FormData, is_strict: bool = False) -> Fields:
    """The texts of a form. The last text of a field counts, unless the field is a list. Raises ApiError.

    The names of lists may end with `[]`.
    """
    texts: dict[str, list[str]] = {}
    for name, value in form.multi_items():
        if isinstance(value, str):
            known = name.removesuffix(LIST)
            texts.setdefault(known if known in kind.model_fields else name, []).append(value)
    lists = {name for name, field in kind.model_fields.items() if get_origin(field.annotation) is tuple}
    found = {name: values if name in lists else values[-1] for name, values in texts.items()}
    return _parsed(partial(kind.model_validate, found), is_strict)


def parse_message(kind: type[Fields], message: Mapping[str, object], is_strict: bool = False) -> Fields:
    """The fields of a message of a socket. Raises ApiError with the path of the field."""
    return _parsed(partial(kind.model_validate, message), is_strict, is_nested=True)


def _parsed(read: Callable[[], Fields], is_strict: bool, is_nested: bool = False) -> Fields:
    try:
        return read().with_hints(is_strict)
    except ValidationError as error:
        raise wrong_field(error, is_nested) from None


def wrong_field(error: ValidationError, is_nested: bool = False) -> ApiError:
    """Names the first field of a request that is wrong, by its path if fields are nested."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = list(map(str, first["loc"]))
    param = (".".join(path) if is_nested else path[0])[:100] if path else None
    reason = "expected an object" if first["type"] == "model_type" else first["msg"]
    return ApiError(400, f"{param or 'body'}: {reason}", CODES.get(first["type"], "invalid_value"), param)


def check_length(characters: int, limit: int, field: str) -> None:
    """Raises ApiError if a text is too long."""
    if characters > limit:
        reason = f"{field}: has {characters} characters, expected at most {limit}"
        raise ApiError(400, reason, "string_above_max_length", field)
