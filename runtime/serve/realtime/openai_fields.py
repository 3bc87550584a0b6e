"""The fields of `session.update` in OpenAI's realtime API, and those of its beta."""

from dataclasses import fields
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from voxport.runtime.audio.turns import KEPT_S, TurnSettings
from voxport.runtime.serve.fields import HINT, UNSUPPORTED, NullIsMissing, RequestFields, only
from voxport.runtime.serve.realtime.connection import Message

MAX_TIMEOUT_MS = 600_000
Delay = Literal["minimal", "low", "medium", "high", "xhigh"]
DELAYS: tuple[Delay, ...] = get_args(Delay)
FormatName = Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
RATES: dict[FormatName, tuple[int, ...]] = {
    "audio/pcm": (24000, 16000),
    "audio/pcmu": (8000,),
    "audio/pcma": (8000,),
}
TURN_FIELDS = {field.name for field in fields(TurnSettings)}
BETA_FIELDS = {  # of a session, and their names in `audio.input`
    "input_audio_format": "format",
    "input_audio_transcription": "transcription",
    "input_audio_noise_reduction": "noise_reduction",
    "turn_detection": "turn_detection",
}
BETA_FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}


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
    rate: int | None = None


class Transcription(SessionPart):
    model: str | None = None
    language: str | None = None
    delay: Delay | None = None
    prompt: Annotated[str | None, HINT] = None
    diarize: Annotated[bool | None, only((None, False), "the models name no speakers", UNSUPPORTED)] = None


class TurnDetection(RequestFields):
    type: Literal["server_vad", "semantic_vad"] = "server_vad"
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, Field(ge=0, le=1000 * KEPT_S)] = 300
    silence_duration_ms: Annotated[int, Field(ge=0, le=MAX_TIMEOUT_MS)] = 500
    idle_timeout_ms: Annotated[int, Field(ge=100, le=MAX_TIMEOUT_MS)] | None = None


class AudioInput(SessionPart):
    format: Annotated[AudioFormat, NullIsMissing] = AudioFormat()
    transcription: Annotated[Transcription, NullIsMissing] = Transcription()
    turn_detection: TurnDetection | None = None


class Audio(SessionPart):
    input: Annotated[AudioInput, NullIsMissing] = AudioInput()


class SessionFields(SessionPart):
    type: Literal["transcription"] = "transcription"
    audio: Annotated[Audio, NullIsMissing] = Audio()


class SessionUpdate(SessionPart):
    """`session.update`."""

    type: str
    event_id: object = None
    session: SessionFields


def without_beta_fields(message: Message) -> Message:
    """An update whose session has the names of the general availability form for those of the beta."""
    session = message.get("session")
    if not isinstance(session, dict) or not BETA_FIELDS.keys() & session:
        return message
    found = {BETA_FIELDS[name]: value for name, value in session.items() if name in BETA_FIELDS}
    if isinstance(name := found.get("format"), str):
        found["format"] = {"type": BETA_FORMATS.get(name, name)}
    rest = {name: value for name, value in session.items() if name not in BETA_FIELDS}
    return {**message, "session": {"audio": {"input": found}, **rest}}
