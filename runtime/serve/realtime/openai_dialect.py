"""The transcription sessions of OpenAI's realtime API (general availability form)."""

from collections.abc import Sequence
from typing import Annotated, Literal, get_args

from pydantic import BaseModel

from voxport.runtime.audio.captions import timed_fields
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import NullIsMissing, Unsupported, parse_message
from voxport.runtime.serve.realtime.session import Message, Session, Utterance, decode_pcm
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.speech_to_text import TranscriptDelta

MIN_COMMIT_S = 0.1  # least audio that can be committed
TEXT = "conversation.item.input_audio_transcription"
TRANSCRIPTION = "session.audio.input.transcription"
Delay = Literal["minimal", "low", "medium", "high", "xhigh"]
DELAYS: tuple[Delay, ...] = get_args(Delay)


class AudioFormat(BaseModel):
    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000, 16000] | None = None


class Transcription(BaseModel):
    model: str | None = None
    language: str | None = None
    delay: Delay | None = None
    prompt: Unsupported = None


class AudioInput(BaseModel):
    format: Annotated[AudioFormat, NullIsMissing] = AudioFormat()
    transcription: Annotated[Transcription, NullIsMissing] = Transcription()
    turn_detection: Unsupported = None
    noise_reduction: Unsupported = None


class Audio(BaseModel):
    input: Annotated[AudioInput, NullIsMissing] = AudioInput()


class SessionFields(BaseModel):
    type: Literal["transcription"] = "transcription"
    audio: Annotated[Audio, NullIsMissing] = Audio()
    include: Unsupported = None


class SessionUpdate(BaseModel):
    """The fields of `session.update` that have an effect, and those that are refused."""

    session: SessionFields


class OpenAiSession(Session):
    """Text is sent while audio arrives; a commit ends an utterance and gives its whole text.

    `words` of the events with text extends the API: the words that are complete, with their times.
    """

    _rate = 24000
    _language: str | None = None
    _delay: Delay | None = None
    _previous: str | None = None  # item

    def description(self) -> Message:
        """The effective configuration of the session."""
        model = self.worker.name if self.worker else None
        transcription = {"model": model, "language": self._language, "delay": self._delay}
        audio = {
            "format": {"type": "audio/pcm", "rate": self._rate},
            "transcription": transcription,
            "noise_reduction": None,
            "turn_detection": None,
        }
        return {
            "type": "transcription",
            "id": f"sess_{self.connection.number}",
            "object": "realtime.transcription_session",
            "audio": {"input": audio},
            "include": [],
        }

    async def handle(self, message: Message) -> None:
        match message["type"]:
            case "session.update":
                await self._update(parse_message(SessionUpdate, message).session)
            case "input_audio_buffer.append":
                samples, worker = decode_pcm(message.get("audio")), self._ready()
                await self.append(samples, self._rate, delay_of(self._delay, worker.task.delays_ms))
            case "input_audio_buffer.commit":
                await self._commit()
            case "input_audio_buffer.clear":
                self.clear()
                await self._send("input_audio_buffer.cleared")
            case other:
                raise ApiError(
                    400, f"type {other[:50]!r}: is no event of this session", "unknown_event", "type"
                )

    async def _update(self, fields: SessionFields) -> None:
        """Fields that an update leaves out stay as they are."""
        if self.current:
            reason = "session: cannot change while audio is transcribed"
            raise ApiError(400, reason, "session_busy", "session")
        audio = fields.audio.input
        given = audio.transcription.model_dump(exclude_unset=True)
        language, model = given.get("language", self._language), given.get("model")
        if language is not None:
            worker = self.models.transcription_worker(model) if model is not None else self._only_worker()
            worker.check_language(language, f"{TRANSCRIPTION}.language")
        if model is not None:
            self.use(model)
        self._language, self._delay = language, given.get("delay", self._delay)
        self._rate = audio.format.rate or self._rate
        await self._send("session.updated", session=self.description())

    def _only_worker(self) -> TranscriptionWorker:
        """The model of the session; without one the only live model. Raises ApiError if there are several."""
        if self.worker:
            return self.worker
        live = [worker for worker in self.models.transcription_workers.values() if worker.live_slots]
        if len(live) != 1:
            names, where = ", ".join(worker.name for worker in live), f"{TRANSCRIPTION}.model"
            raise ApiError(400, f"{where}: expected one of {names or 'none'}", "model_not_found", where)
        return live[0]

    def _ready(self) -> TranscriptionWorker:
        """A session that names no model has the only one there is."""
        return self.worker or self.use(self._only_worker().name)

    async def _commit(self) -> None:
        self.check_refused()
        current = self.current
        if current is None or current.seconds < MIN_COMMIT_S:
            found = 1000 * current.seconds if current else 0
            message = (
                f"the buffer has {found:.0f} ms of audio, expected at least {1000 * MIN_COMMIT_S:.0f} ms"
            )
            raise ApiError(400, message, "input_audio_buffer_commit_empty")
        item, previous = self._item(current), self._previous
        self._previous = item
        await self._send("input_audio_buffer.committed", item_id=item, previous_item_id=previous)
        content = [{"type": "input_audio", "transcript": None}]
        entry = {"id": item, "type": "message", "role": "user", "status": "completed", "content": content}
        for kind in ("added", "done"):
            await self._send(f"conversation.item.{kind}", previous_item_id=previous, item=entry)
        self.finish()

    def _item(self, utterance: Utterance) -> str:
        return f"item_{self.connection.number}_{utterance.number}"

    async def on_delta(self, utterance: Utterance, delta: TranscriptDelta) -> None:
        await self._send(
            f"{TEXT}.delta",
            item_id=self._item(utterance),
            content_index=0,
            delta=delta.text,
            words=[timed_fields(word) for word in delta.words],
        )

    async def on_end(self, utterance: Utterance) -> None:
        usage = {"type": "duration", "seconds": round(utterance.seconds, 3)}
        item, text = self._item(utterance), utterance.job.transcript
        await self._send(f"{TEXT}.completed", item_id=item, content_index=0, transcript=text, usage=usage)

    async def on_failure(self, utterance: Utterance, error: ApiError) -> None:
        await self._send(f"{TEXT}.failed", item_id=self._item(utterance), content_index=0, error=error.fields)

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
