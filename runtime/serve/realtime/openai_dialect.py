"""The transcription sessions of OpenAI's realtime API (general availability form)."""

from collections.abc import Sequence

import numpy as np

from voxport.bundle.json_types import Json
from voxport.runtime.audio.captions import timed_fields
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.realtime.connection import Message
from voxport.runtime.serve.realtime.session import Session
from voxport.runtime.serve.realtime.utterances import Utterance, Utterances, decode_pcm
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.speech_to_text import TranscriptDelta

RATES = (24000, 16000)
MIN_COMMIT_S = 0.1  # least audio that can be committed
TEXT = "conversation.item.input_audio_transcription"
INPUT = "session.audio.input"
DELAYS = ("minimal", "low", "medium", "high", "xhigh")


class OpenAiSession(Session):
    """Text is sent while audio arrives; a commit ends an utterance and gives its whole text.

    `words` of the events with text extends the API: the words that are complete, with their times.
    """

    rate = RATES[0]
    _model: str | None = None
    _previous: str | None = None
    _language: str | None = None
    _delay: str | None = None

    def description(self) -> Message:
        """The effective configuration of the session."""
        transcription = {"model": self._model, "language": self._language, "delay": self._delay}
        audio = {
            "format": {"type": "audio/pcm", "rate": self.rate},
            "transcription": transcription,
            "noise_reduction": None,
            "turn_detection": None,
        }
        return {
            "type": "transcription",
            "id": f"sess_{self.context.number}",
            "object": "realtime.transcription_session",
            "audio": {"input": audio},
            "include": [],
        }

    async def handle(self, message: Message) -> None:
        match message["type"]:
            case "session.update":
                await self._update(message)
            case "input_audio_buffer.append":
                await self._append(decode_pcm(message.get("audio")))
            case "input_audio_buffer.commit":
                await self._commit()
            case "input_audio_buffer.clear":
                if self.utterances:
                    self.utterances.clear()
                await self._send("input_audio_buffer.cleared")
            case other:
                raise ApiError(
                    400, f"type {other[:50]!r}: is no event of this session", "unknown_event", "type"
                )

    async def _update(self, message: Message) -> None:
        session = message.get("session")
        if not isinstance(session, dict):
            raise ApiError(400, "session: expected an object", "invalid_value", "session")
        if self.utterances and self.utterances.current:
            raise ApiError(
                400, "session: cannot change while audio is transcribed", "session_busy", "session"
            )
        if session.get("type", "transcription") != "transcription":
            raise ApiError(400, "session.type: expected transcription", "invalid_value", "session.type")
        audio = _object(_object(session, "audio", "session"), "input", "session.audio")
        transcription = _object(audio, "transcription", INPUT)
        _refuse_unsupported(session, ("include",), "session")
        _refuse_unsupported(audio, ("turn_detection", "noise_reduction"), INPUT)
        _refuse_unsupported(transcription, ("prompt",), f"{INPUT}.transcription")
        rate = self._rate(_object(audio, "format", INPUT))
        delay = transcription.get("delay", self._delay)
        if delay not in (None, *DELAYS):
            where = f"{INPUT}.transcription.delay"
            raise ApiError(400, f"{where}: expected one of {', '.join(DELAYS)}", "invalid_value", where)
        model = transcription.get("model", self._model)
        language = transcription.get("language", self._language)
        if language is not None:
            _check_language(self._worker_of(model), str(language), "language" in transcription)
        if model is not None:
            self.choose(str(model))
        self._language = str(language) if language is not None else None
        self._delay = delay
        self.rate = rate
        await self._send("session.updated", session=self.description())

    def _rate(self, given: Json) -> int:
        kind, rate = given.get("type", "audio/pcm"), given.get("rate", self.rate)
        if kind != "audio/pcm" or rate not in RATES:
            raise ApiError(
                400,
                f"{INPUT}.format: expected audio/pcm at {' or '.join(map(str, RATES))} Hz",
                "invalid_value",
                f"{INPUT}.format",
            )
        return int(rate)

    def choose(self, model: str) -> Utterances:
        """Raises ApiError."""
        utterances, self._model = self.use(self.context.models.transcription_worker(model)), model
        return utterances

    def _ready(self) -> Utterances:
        """A session that names no model has the only one there is."""
        return self.utterances or self.choose(self._worker_of(None).name)

    def _worker_of(self, model: object) -> TranscriptionWorker:
        """Raises ApiError if `model` is no name of one, or None and there are several."""
        if model is not None:
            return self.context.models.transcription_worker(str(model))
        live = [worker for worker in self.context.models.transcription_workers.values() if worker.live_slots]
        if len(live) != 1:
            names, where = ", ".join(worker.name for worker in live), f"{INPUT}.transcription.model"
            raise ApiError(400, f"{where}: expected one of {names or 'none'}", "model_not_found", where)
        return live[0]

    async def _append(self, samples: np.ndarray) -> None:
        utterances = self._ready()
        if utterances.current is None:
            delays = self.context.models.transcription_worker(self._model or "").task.delays_ms
            await utterances.begin(self.rate, delay_of(self._delay, delays))
        await utterances.append(samples)

    async def _commit(self) -> None:
        utterances = self._ready()
        utterances.check_refused()
        current = utterances.current
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
        utterances.finish()

    def _item(self, utterance: Utterance) -> str:
        return f"item_{self.context.number}_{utterance.number}"

    async def on_delta(self, utterance: Utterance, delta: TranscriptDelta) -> None:
        await self._send(
            f"{TEXT}.delta",
            item_id=self._item(utterance),
            content_index=0,
            delta=delta.text,
            words=[timed_fields(word) for word in delta.words],
        )

    async def on_end(self, utterance: Utterance, text: str) -> None:
        usage = {"type": "duration", "seconds": round(utterance.seconds, 3)}
        await self._send(
            f"{TEXT}.completed", item_id=self._item(utterance), content_index=0, transcript=text, usage=usage
        )

    async def on_job_error(self, utterance: Utterance, error: ApiError) -> None:
        await self._send(f"{TEXT}.failed", item_id=self._item(utterance), content_index=0, error=error.fields)

    async def send_error(self, error: ApiError, message: Message) -> None:
        fields = {**error.fields, "event_id": message.get("event_id")}
        await self._send("error", error=fields)

    async def _send(self, kind: str, **fields: object) -> None:
        await self.connection.send({"type": kind, "event_id": self.event_id(), **fields})


def _check_language(worker: TranscriptionWorker, language: str, is_given: bool) -> None:
    """`is_given`: by this update, not by an earlier one. Raises ApiError."""
    where = f"{INPUT}.transcription.language"
    try:
        worker.check_language(language, where)
    except ApiError:
        if is_given:
            raise
        reason = (
            f"{where}: {language}, which an earlier update set, is no language of {worker.name}; send "
            f"{' or '.join(worker.task.languages)} or null with the model"
        )
        raise ApiError(400, reason, "invalid_value", where) from None


def delay_of(name: str | None, delays_ms: Sequence[int]) -> int | None:
    """The bundle's delay in ms for one of `DELAYS`: `minimal` is its least, `xhigh` its largest."""
    if name is None:
        return None
    ordered = sorted(delays_ms)
    return ordered[round(DELAYS.index(name) * (len(ordered) - 1) / (len(DELAYS) - 1))]


def _refuse_unsupported(parent: Json, names: Sequence[str], where: str) -> None:
    """Raises ApiError on a field that would have no effect."""
    for name in names:
        if parent.get(name) not in (None, "", []):
            field = f"{where}.{name}"
            raise ApiError(400, f"{field}: is not supported; leave it out", "unsupported_value", field)


def _object(parent: Json, name: str, where: str) -> Json:
    """An optional object; null is like a missing one. Raises ApiError."""
    value = parent.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ApiError(400, f"{where}.{name}: expected an object", "invalid_value", f"{where}.{name}")
    return value
