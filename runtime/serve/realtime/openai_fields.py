"""The fields of `session.update` in OpenAI's realtime API, which refuses those of its beta."""

from dataclasses import fields
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from voxport.runtime.audio.turns import KEPT_S, TurnSettings
from voxport.runtime.serve.fields import HINT, UNSUPPORTED, RequestFields, only

MAX_TIMEOUT_MS = 600_000
Delay = Literal["minimal", "low", "medium", "high", "xhigh"]
DELAYS: tuple[Delay, ...] = get_args(Delay)
FormatName = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
DEFAULT_RATES: dict[FormatName, int] = {"audio/pcm": 24000, "audio/pcmu": 8000, "audio/pcma": 8000}
TURN_FIELDS = {field.name for field in fields(TurnSettings)}


def _beta(name: str) -> AfterValidator:
    """Refuses a field of the beta, whose `name` in `audio.input` is another one."""
    return only((None,), f"belongs to the beta of this API; send session.audio.input.{name}", UNSUPPORTED)


class SessionPart(RequestFields):
    """Fields of an update. Null is a value of those that are known: it resets them."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        known = cls.model_fields
        return {
            name: each for name, each in data.items() if each != "" and (each is not None or name in known)
        }


class AudioFormat(SessionPart):
    type: FormatName = "audio/pcm"
    rate: Annotated[int, Field(ge=8000, le=48000)] | None = None

    @model_validator(mode="after")
    def _has_rate(self) -> Self:
        default = DEFAULT_RATES[self.type]
        if self.type != "audio/pcm" and self.rate not in (None, default):
            reason = f"rate {self.rate}: expected {default} for {self.type}"
            raise PydanticCustomError("invalid_value", "{reason}", {"reason": reason})
        return self


class Transcription(SessionPart):
    model: str | None = None
    language: str | None = None
    delay: Delay | None = None
    prompt: Annotated[str | None, HINT] = None
    diarize: Annotated[bool | None, only((None, False), "the models name no speakers", UNSUPPORTED)] = None


class TurnDetection(RequestFields):
    """`semantic_vad` is taken as `server_vad`."""

    type: Annotated[Literal["server_vad", "semantic_vad"], HINT] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=1000 * KEPT_S)] = 300
    silence_duration_ms: Annotated[int, Field(ge=0, le=MAX_TIMEOUT_MS)] = 500
    idle_timeout_ms: Annotated[int, Field(ge=100, le=MAX_TIMEOUT_MS)] | None = None


class AudioInput(SessionPart):
    format: AudioFormat = AudioFormat()
    transcription: Transcription = Transcription()
    turn_detection: TurnDetection | None = None


class Audio(SessionPart):
    input: AudioInput = AudioInput()


class SessionFields(SessionPart):
    type: Literal["transcription"] = "transcription"
    input_audio_format: Annotated[object, _beta("format")] = None
    input_audio_transcription: Annotated[object, _beta("transcription")] = None
    input_audio_noise_reduction: Annotated[object, _beta("noise_reduction")] = None
    turn_detection: Annotated[object, _beta("turn_detection")] = None
    audio: Audio = Audio()


class SessionUpdate(SessionPart):
    """`session.update`."""

    type: str
    event_id: object = None
    session: SessionFields
