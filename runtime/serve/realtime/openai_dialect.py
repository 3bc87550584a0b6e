"""The transcription sessions of OpenAI's realtime API, which refuse fields and events of its beta."""

from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.captions import timed_fields
from voxport.runtime.audio.turns import KEPT_S, TurnAudio, TurnSettings
from voxport.runtime.serve.errors import ApiError, from_exception
from voxport.runtime.serve.fields import HINT, UNSUPPORTED, RequestFields, only
from voxport.runtime.serve.realtime.connection import Message
from voxport.runtime.serve.realtime.input_audio import InputAudio
from voxport.runtime.serve.realtime.session import Session
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.speech_to_text import TranscriptDelta, TranscriptionOptions

MIN_COMMIT_S = 0.1  # least audio that can be committed
TEXT = "conversation.item.input_audio_transcription"
BUFFER = "input_audio_buffer"
HINTS = "session.audio.input.transcription"  # has language and prompt
ENCODINGS = {"audio/pcm": "pcm_s16le", "audio/pcmu": "pcm_mulaw", "audio/pcma": "pcm_alaw"}
TURN_MODELS = ("gpt-4o-", "gpt-transcribe", "whisper-")  # begin names of models whose default is `server_vad`
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
    """Fields of an update."""

    null_resets = True


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
    prompt: str | None = None
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


class OpenAiSession(Session):
    """Text is sent while audio arrives; a commit or a pause ends a part and gives its whole text.

    `words` of the events with text extends the API: the words that are complete, with their times.
    """

    events: ClassVar = {
        "session.update": None,
        "transcription_session.update": None,
        f"{BUFFER}.append": ("audio",),
        f"{BUFFER}.commit": (),
        f"{BUFFER}.clear": (),
    }
    _format: FormatName = "audio/pcm"
    _rate = 24000
    _has_turn_choice = False  # whether the client has set `turn_detection`
    _language: str | None = None
    _prompt: str | None = None
    _delay: Delay | None = None
    _previous: str | None = None  # item

    def description(self) -> Message:
        """The effective configuration of the session."""
        model = self.worker.name if self.worker else None
        transcription = {"model": model, "language": self._language, "prompt": self._prompt}
        transcription["delay"] = self._delay
        audio = {
            "format": {"type": self._format, "rate": self._rate},
            "transcription": transcription,
            "noise_reduction": None,
            "turn_detection": {"type": "server_vad", **asdict(self.turns.settings)} if self.turns else None,
        }
        return {
            "type": "transcription",
            "id": f"sess_{self.connection.number}",
            "object": "realtime.transcription_session",
            "audio": {"input": audio},
            "include": [],
        }

    async def react(self, message: Message) -> None:
        match message["type"]:
            case "session.update":
                await self._update(message)
            case "transcription_session.update":
                reason = "belongs to the beta of the API; send session.update, with audio.input in session"
                raise ApiError(400, f"type {message['type']!r}: {reason}", "unknown_event", "type")
            case "input_audio_buffer.append":
                encoding, delay_ms = ENCODINGS[self._format], self._delay_ms()
                await self.append(message, encoding, self._rate, delay_ms)
            case "input_audio_buffer.commit":
                await self._commit()
            case "input_audio_buffer.clear":
                self.clear()
                await self._send("input_audio_buffer.cleared")

    def use(self, model: str) -> TranscriptionWorker:
        """Also sets the default of turn detection, which depends on the name of a model of OpenAI."""
        worker = super().use(model)
        if not self._has_turn_choice and self.models.bundle_of(model) is None:
            is_default = model.rpartition("/")[2].startswith(TURN_MODELS)
            self.detect_turns(self._rate, TurnSettings() if is_default else None)
        return worker

    async def _update(self, message: Message) -> None:
        """Fields that an update leaves out stay as they are."""
        update = self.parse_update(SessionUpdate, message)
        audio = update.session.audio.input
        given = audio.transcription.model_dump(exclude_unset=True)
        language, model = given.get("language", self._language), given.get("model")
        prompt, hints = given.get("prompt", self._prompt), TranscriptionOptions()
        if language is not None or prompt is not None:
            worker = self.models.live_worker(model) if model or not self.worker else self.worker
            check = partial(worker.check_language, language, f"{HINTS}.language")
            language = language if update.is_taken(f"{HINTS}.language", check) else None
            if prompt is not None and not worker.task.has_hints:
                update.ignore(f"{HINTS}.prompt")
                prompt = None
            try:
                worker.task.check_context(prompt or "")
            except UsageError as error:
                refusal = from_exception(error)
                raise ApiError(400, refusal.message, refusal.code, f"{HINTS}.prompt") from None
            hints = TranscriptionOptions(language=worker.check_language(language), context=prompt or "")
        if model is not None:
            self.use(model)
        self._language, self._prompt, self.hints = language, prompt, hints  # of this model, also on an error
        self._set_input(audio)
        self._delay = given.get("delay", self._delay)
        updated = {"type": "session.updated", "event_id": self.event_id(), "session": self.description()}
        await self.connection.send(updated, update.ignored)

    def _set_input(self, audio: AudioInput) -> None:
        """Format and turn detection. A rate that is left out stays if the format does.

        Raises ApiError if one of them would change within a part.
        """
        kind = audio.format.type if audio.format.model_fields_set else self._format
        rate = audio.format.rate or (self._rate if kind == self._format else DEFAULT_RATES[kind])
        before = self.turns.settings if self.turns else None
        settings, has_choice = before, "turn_detection" in audio.model_fields_set
        if has_choice:
            fields = audio.turn_detection
            settings = TurnSettings(**fields.model_dump(include=TURN_FIELDS)) if fields else None
        if self.current and (kind, rate, settings) != (self._format, self._rate, before):
            reason = "session: the format and turn detection cannot change while audio is transcribed"
            raise ApiError(400, reason, "session_busy", "session")
        self._format, self._rate = kind, rate
        self._has_turn_choice = self._has_turn_choice or has_choice
        self.detect_turns(rate, settings)

    def _delay_ms(self) -> int | None:
        """A session that names no model has the first live one from its first audio on."""
        worker = self.worker or self.use(self.models.live_worker(None).name)
        return delay_of(self._delay, worker.task.delays_ms)

    async def _commit(self) -> None:
        self.check_refused()
        pending_s = self.turns.pending_s if self.turns else 0.0
        seconds = self.current.seconds if self.current else pending_s
        if seconds < MIN_COMMIT_S:
            message = (
                f"the buffer has {1000 * seconds:.0f} ms of audio, expected at least "
                f"{1000 * MIN_COMMIT_S:.0f} ms"
            )
            raise ApiError(400, message, "input_audio_buffer_commit_empty")
        await self.end_turn(self._delay_ms())
        if self.current:
            await self._send_committed(self.current)
        self.finish()

    async def _send_committed(self, audio: InputAudio) -> None:
        item, previous = self._item(audio), self._previous
        self._previous = item
        await self._send("input_audio_buffer.committed", item_id=item, previous_item_id=previous)
        content = [{"type": "input_audio", "transcript": None}]
        entry = {"id": item, "type": "message", "role": "user", "status": "completed", "content": content}
        for kind in ("added", "done"):
            await self._send(f"conversation.item.{kind}", previous_item_id=previous, item=entry)

    async def on_turn_start(self, audio: InputAudio, start_ms: int) -> None:
        await self._send(f"{BUFFER}.speech_started", audio_start_ms=start_ms, item_id=self._item(audio))

    async def on_turn_end(self, audio: InputAudio, turn: TurnAudio) -> None:
        fields: dict[str, Any] = {"audio_end_ms": turn.end_ms, "item_id": self._item(audio)}
        if turn.is_silent:
            await self._send(f"{BUFFER}.timeout_triggered", audio_start_ms=turn.start_ms, **fields)
        else:
            await self._send(f"{BUFFER}.speech_stopped", **fields)
        await self._send_committed(audio)

    def _item(self, audio: InputAudio) -> str:
        return f"item_{self.connection.number}_{audio.number}"

    async def on_delta(self, audio: InputAudio, delta: TranscriptDelta) -> None:
        await self._send(
            f"{TEXT}.delta",
            item_id=self._item(audio),
            content_index=0,
            delta=delta.text,
            words=[timed_fields(word) for word in delta.words],
        )

    async def on_end(self, audio: InputAudio) -> None:
        usage = {"type": "duration", "seconds": round(audio.seconds, 3)}
        item, job = self._item(audio), audio.job
        found = {"language": job.language} if job.language else {}  # extends the API
        done = {"item_id": item, "content_index": 0, "transcript": job.transcript, "usage": usage}
        await self._send(f"{TEXT}.completed", **done, **found)

    async def on_failure(self, audio: InputAudio, error: ApiError) -> None:
        await self._send(f"{TEXT}.failed", item_id=self._item(audio), content_index=0, error=error.fields)

    async def send_error(self, error: ApiError, message: Message) -> None:
        fields = {**error.fields, "event_id": message.get("event_id")}
        await self._send("error", error=fields)

    async def _send(self, kind: str, **fields: object) -> None:
        await self.connection.send({"type": kind, "event_id": self.event_id(), **fields})


def delay_of(name: Delay | None, delays_ms: Sequence[int]) -> int | None:
    """The bundle's delay in ms for one of `DELAYS`: `minimal` is its least, `xhigh` its largest."""
    if name is None:
        return None
    ordered = sorted(delays_ms)
    return ordered[round(DELAYS.index(name) * (len(ordered) - 1) / (len(DELAYS) - 1))]
