"""The realtime transcription of Mistral's API."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from voxport.bundle.bounds import MAX_RATE, MIN_RATE
from voxport.runtime.audio.turns import TurnAudio, TurnSettings
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import UNSUPPORTED, RequestFields, Unsupported, only
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.connection import Connection, Message
from voxport.runtime.serve.realtime.input_audio import InputAudio
from voxport.runtime.serve.realtime.session import NORMAL, Session
from voxport.runtime.speech_to_text import TranscriptDelta

CODES = {400: 3001, 404: 3004, 429: 3029, 503: 3053}  # error codes; the API documents only that they are ints
Encoding = Literal["pcm_s16le", "pcm_s32le", "pcm_f16le", "pcm_f32le", "pcm_mulaw", "pcm_alaw"]


class AudioFormat(RequestFields):
    encoding: Encoding = "pcm_s16le"
    sample_rate: Annotated[int, Field(strict=True, ge=MIN_RATE, le=MAX_RATE)] | None = None


class TurnDetection(RequestFields):
    """The end of a turn is a pause, for which the model has no probabilities."""

    start_threshold: Annotated[float, Field(ge=0, le=1)] = 0.5
    min_silence_ms: Annotated[int, Field(ge=0, le=60_000)] = 500


class SessionFields(RequestFields):
    audio_format: AudioFormat = AudioFormat()
    target_streaming_delay_ms: Annotated[int, Field(strict=True)] | None = None
    turn_detection: TurnDetection | None = None
    diarize: Annotated[bool, only((False,), "the models name no speakers", UNSUPPORTED)] = False
    speaker_references: Unsupported = None


class SessionUpdate(RequestFields):
    """`session.update`."""

    type: str
    session: SessionFields


class MistralSession(Session):
    """`input_audio.flush` ends a segment and gives its text; `input_audio.end` also ends the session.

    With turn detection a segment has a part for each turn.
    """

    max_append = 262_144
    events: ClassVar = {
        "session.update": None,
        "input_audio.append": ("audio",),
        "input_audio.flush": (),
        "input_audio.end": (),
    }

    def __init__(self, connection: Connection, models: Models, model: str):
        super().__init__(connection, models)
        self._worker = self.use(model)
        self._format, self._rate = AudioFormat(), 16000
        self._delay_ms = self._worker.task.delays_ms[0]
        self._turn_detection: TurnDetection | None = None
        self._has_ended = False  # the audio
        self._texts, self._seconds = list[str](), 0.0  # of the parts of this segment that are transcribed
        self._language = ""  # the first that was heard
        self._last_parts: set[InputAudio] = set()  # of segments whose text is to come
        self._turn_ends: dict[InputAudio, float] = {}  # seconds from the beginning

    def description(self) -> Message:
        """The effective configuration of the session."""
        return {
            "request_id": f"ws_{self.connection.number}",
            "model": self._worker.name,
            "audio_format": {"encoding": self._format.encoding, "sample_rate": self._rate},
            "target_streaming_delay_ms": self._delay_ms,
            "turn_detection": self._turn_detection and self._turn_detection.model_dump(),
        }

    async def react(self, message: Message) -> None:
        if self._has_ended:
            raise ApiError(400, "the audio has ended; its text follows", "invalid_event")
        match message["type"]:
            case "session.update":
                await self._update(message)
            case "input_audio.append":
                encoding = self._format.encoding
                await self.append(message, encoding, self._rate, self._delay_ms)
            case "input_audio.flush":
                await self._end_segment()
            case "input_audio.end":
                if not self._parts:
                    raise ApiError(400, "there is no audio to transcribe", "invalid_audio")
                await self._end_segment(is_last=True)

    async def _update(self, message: Message) -> None:
        if self.current:
            raise ApiError(400, "session: cannot change once audio has begun")
        update = self.parse_update(SessionUpdate, message)
        fields, delays = update.session, self._worker.task.delays_ms
        delay = fields.target_streaming_delay_ms
        if delay is not None and delay not in delays:
            reason = f"expected one of {', '.join(map(str, delays))}"
            update.ignore("session.target_streaming_delay_ms", reason, UNSUPPORTED)
        if delay is not None:
            self._delay_ms = min(delays, key=lambda each: abs(each - delay))
        if fields.audio_format.model_fields_set:
            self._format = fields.audio_format
            self._rate = self._format.sample_rate or self._rate
        self._turn_detection = fields.turn_detection or self._turn_detection
        if turns := self._turn_detection:
            settings = TurnSettings(turns.start_threshold, silence_duration_ms=turns.min_silence_ms)
            self.detect_turns(self._rate, settings)
        updated: Message = {"type": "session.updated", "session": self.description()}
        await self.connection.send(updated, update.ignored)

    async def _end_segment(self, is_last: bool = False) -> None:
        """Ends the audio of a segment, whose text is sent when it is complete. Raises ApiError.

        A flush has an answer even if there is no audio. The end of the session has one if there is.
        """
        self.check_refused()
        if self.turns and self.current:
            await self.end_turn(self._delay_ms)
        elif self.turns:
            self.turns.clear()  # has no speech
        self._has_ended = is_last
        if self.current:
            self._last_parts.add(self.current)
            self.finish()
        elif self._pending:
            self._last_parts.add(self._pending[-1])
        else:
            if self._texts or not is_last:
                await self._send_done()
            if is_last:
                await self.connection.close(NORMAL)

    async def on_turn_start(self, audio: InputAudio, start_ms: int) -> None:
        await self.connection.send({"type": "turn.start", "time_s": start_ms / 1000})

    async def on_turn_end(self, audio: InputAudio, turn: TurnAudio) -> None:
        self._turn_ends[audio] = (turn.end_ms or 0) / 1000

    async def on_delta(self, audio: InputAudio, delta: TranscriptDelta) -> None:
        if delta.text:
            is_first = any(self._texts) and audio.job.text == delta.text
            text = f" {delta.text}" if is_first else delta.text
            await self.connection.send({"type": "transcription.text.delta", "text": text})

    async def on_end(self, audio: InputAudio) -> None:
        self._texts.append(audio.job.transcript)
        self._seconds += audio.seconds
        self._language = self._language or audio.job.language
        if (time_s := self._turn_ends.pop(audio, None)) is not None:
            end: Message = {"type": "turn.end", "time_s": time_s, "end_reason": "threshold"}
            await self.connection.send(end)
        if audio in self._last_parts:
            self._last_parts.remove(audio)
            await self._send_done()
        if self._has_ended and self._pending == [audio]:
            await self.connection.close(NORMAL)

    async def _send_done(self) -> None:
        counts = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), 0)
        done: Message = {
            "type": "transcription.done",
            "model": self._worker.name,
            "text": " ".join(filter(None, self._texts)),
            "usage": {**counts, "prompt_audio_seconds": round(self._seconds)},
            "language": self._language or None,
            "segments": [],
        }
        self._texts, self._seconds, self._language = [], 0.0, ""
        await self.connection.send(done)

    async def on_failure(self, audio: InputAudio, error: ApiError) -> None:
        await self.send_error(error, {})
        await self.connection.close(NORMAL)

    async def send_error(self, error: ApiError, message: Message) -> None:
        code = CODES.get(error.status, 3000)
        await self.connection.send({"type": "error", "error": {"message": error.message, "code": code}})
