"""The realtime transcription of Mistral's API."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from voxport.bundle.bounds import MAX_RATE, MIN_RATE
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import NullIsMissing, parse_message
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.session import NORMAL, Connection, Message, Session, Utterance, decode_pcm
from voxport.runtime.speech_to_text import TranscriptDelta

MAX_APPEND = 262_144  # bytes
CODES = {400: 3001, 404: 3004, 429: 3029, 503: 3053}  # error codes; the API documents only that they are ints


class AudioFormat(BaseModel):
    encoding: Literal["pcm_s16le"] = "pcm_s16le"
    sample_rate: Annotated[int, Field(strict=True, ge=MIN_RATE, le=MAX_RATE)] | None = None


class SessionFields(BaseModel):
    audio_format: Annotated[AudioFormat, NullIsMissing] = AudioFormat()
    target_streaming_delay_ms: Annotated[int, Field(strict=True)] | None = None


class SessionUpdate(BaseModel):
    """The fields of `session.update` that have an effect."""

    session: SessionFields


class MistralSession(Session):
    """One recording per socket. `input_audio.end` ends it; the session ends once its text is sent."""

    def __init__(self, connection: Connection, models: Models, model: str):
        super().__init__(connection, models)
        self._worker = self.use(model)
        self._rate, self._delay_ms = 16000, self._worker.task.delays_ms[0]
        self._has_ended = False  # the audio

    def description(self) -> Message:
        """The effective configuration of the session."""
        return {
            "request_id": f"ws_{self.connection.number}",
            "model": self._worker.name,
            "audio_format": {"encoding": "pcm_s16le", "sample_rate": self._rate},
            "target_streaming_delay_ms": self._delay_ms,
        }

    async def handle(self, message: Message) -> None:
        if self._has_ended:
            raise ApiError(400, "the audio has ended; its text follows", "invalid_event")
        match message["type"]:
            case "session.update":
                await self._update(parse_message(SessionUpdate, message).session)
            case "input_audio.append":
                samples = decode_pcm(message.get("audio"))
                if 2 * len(samples) > MAX_APPEND:
                    reason = f"audio: has {2 * len(samples)} bytes, expected at most {MAX_APPEND}"
                    raise ApiError(400, reason)
                await self.append(samples, self._rate, self._delay_ms)
            case "input_audio.flush":
                pass  # audio is transcribed as it arrives
            case "input_audio.end":
                self.finish()
                self._has_ended = True
            case other:
                raise ApiError(400, f"type {other[:50]!r}: is no event of this session", "unknown_event")

    async def _update(self, fields: SessionFields) -> None:
        if self.current:
            raise ApiError(400, "session: cannot change once audio has begun")
        delay, delays = fields.target_streaming_delay_ms, self._worker.task.delays_ms
        if delay is not None and delay not in delays:
            raise ApiError(400, f"target_streaming_delay_ms: expected one of {', '.join(map(str, delays))}")
        self._rate = fields.audio_format.sample_rate or self._rate
        self._delay_ms = self._delay_ms if delay is None else delay
        await self.connection.send({"type": "session.updated", "session": self.description()})

    async def on_delta(self, utterance: Utterance, delta: TranscriptDelta) -> None:
        if delta.text:
            await self.connection.send({"type": "transcription.text.delta", "text": delta.text})

    async def on_end(self, utterance: Utterance) -> None:
        counts = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)
        done: Message = {
            "type": "transcription.done",
            "model": self._worker.name,
            "text": utterance.job.transcript,
            "usage": {**counts, "prompt_audio_seconds": round(utterance.seconds)},
            "language": None,
            "segments": [],
        }
        await self.connection.send(done)
        await self.connection.close(NORMAL)

    async def on_failure(self, utterance: Utterance, error: ApiError) -> None:
        await self.send_error(error, {})
        await self.connection.close(NORMAL)

    async def send_error(self, error: ApiError, message: Message) -> None:
        code = CODES.get(error.status, 3000)
        await self.connection.send({"type": "error", "error": {"message": error.message, "code": code}})
