"""Text that arrives in pieces, as clients of vLLM-Omni and of Mistral send it."""

from concurrent.futures import Executor
from typing import Annotated

from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.fields import (
    HINT,
    UNSUPPORTED,
    SpeechFields,
    SpeechFormatField,
    Unsupported,
    log_ignored,
    only,
)
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.connection import Connection, Message
from voxport.runtime.serve.realtime.mistral_dialect import CODES
from voxport.runtime.serve.realtime.session import NORMAL
from voxport.runtime.serve.realtime.speech_session import SpeechSession
from voxport.runtime.serve.speech.answers import encoded, mistral_delta, mistral_done
from voxport.runtime.serve.speech.arriving_text import ArrivingText
from voxport.runtime.serve.speech.job import SpeechJob
from voxport.runtime.serve.speech.settings import SpeechSettings


class OmniFields(SpeechFields):
    """`session.config`. With `stream_audio` the sound of a part is sent while it is made."""

    type: str = ""
    response_format: SpeechFormatField = "wav"
    stream_audio: bool = False
    word_timestamps: Annotated[bool, only((False,), "speech has no times of words", UNSUPPORTED)] = False
    speaker_embedding: Unsupported = None


class OmniSession(SpeechSession):
    """vLLM-Omni's dialect. A text has several parts, and each of them is a file of its own."""

    fields = OmniFields

    async def handle(self, message: Message) -> None:
        match message["type"]:
            case "session.config":
                await self.configure(message)
            case "input.text":
                await self.add(message.get("text"))
            case "input.done":
                await self.finish()
            case "session.close":
                await self.connection.close(NORMAL)
            case other:
                raise ApiError(400, f"type {other[:50]!r}: is no event of this session", "unknown_event")

    async def speak(self, settings: SpeechSettings, job: SpeechJob, text: ArrivingText) -> None:
        part, count, result = None, 0, await job.read_marked()
        while result is not None:
            if part is None and result:
                part = OmniPart(self, settings, count)
                count += 1
                await part.start(result if isinstance(result, str) else "")
            if part and isinstance(result, bytes):
                await part.send(await part.encoder.encode(result))
            result = await job.read_marked()
            if part and not isinstance(result, bytes):
                await part.end()
                part = None
        await self._send_done(count, settings.body.ignored)

    async def _send_done(self, count: int, ignored: tuple[str, ...] = ()) -> None:
        done: Message = {"type": "session.done", "utterance_index": self.texts, "total_sentences": count}
        if ignored:
            log_ignored(self.connection.client, ignored)
            done["ignored"] = list(ignored)
        await self.connection.send(done)

    async def on_failure(self, error: ApiError) -> None:
        await self.send_error(error, {})
        await self._send_done(0)

    async def send_error(self, error: ApiError, message: Message) -> None:
        await self.connection.send({"type": "error", "message": error.message, "code": error.code})


class OmniPart:
    def __init__(self, session: OmniSession, settings: SpeechSettings, number: int):
        self._settings, self._connection, self.encoder = settings, session.connection, settings.encoder()
        self._indices: Message = {"utterance_index": session.texts, "sentence_index": number}
        self._held, self._size = b"", 0  # bytes

    async def start(self, text: str) -> None:
        form = self._settings.body.response_format, self._settings.worker.task.sample_rate
        start = {"type": "audio.start", **self._indices, "sentence_text": text}
        await self._connection.send({**start, "format": form[0], "sample_rate": form[1]})

    async def send(self, content: bytes, is_last: bool = False) -> None:
        """Without `stream_audio` a part is one message."""
        self._size, self._held = self._size + len(content), self._held + content
        if self._held and (is_last or getattr(self._settings.body, "stream_audio", False)):
            await self._connection.send(self._held)
            self._held = b""

    async def end(self) -> None:
        await self.send(await self.encoder.finish(), is_last=True)
        done = {"type": "audio.done", **self._indices, "total_bytes": self._size, "error": False}
        await self._connection.send(done)


class MistralSpeechFields(SpeechFields):
    """The object `session` of `session.update`."""

    response_format: SpeechFormatField = "wav"
    streaming_mode: Annotated[str, HINT] = "responsive"
    expressiveness: Annotated[float, HINT] = 1


class MistralSpeechSession(SpeechSession):
    """Mistral's dialect. `input_text.flush` ends a text, `input_text.end` the session too."""

    fields = MistralSpeechFields

    def __init__(self, connection: Connection, models: Models, threads: Executor, model: str | None):
        """Raises ApiError on an unknown model."""
        self._model = models.speech_worker(model).name
        super().__init__(connection, models, threads, model=self._model)
        self._has_ended = False

    def description(self) -> Message:
        """The effective configuration of the session."""
        body = self.settings.body if self.settings else MistralSpeechFields()
        return {
            "request_id": f"ws_{self.connection.number}",
            "model": self._model,
            "voice": self.settings.voice.name if self.settings else None,
            "is_ref_audio": bool(body.ref_audio),
            "response_format": body.response_format,
            "streaming_mode": "responsive",
            "expressiveness": 1.0,
        }

    async def handle(self, message: Message) -> None:
        if self._has_ended:
            raise ApiError(400, "the text has ended; its speech follows", "invalid_event")
        match message["type"]:
            case "session.update":
                await self._update(message.get("session"))
            case "input_text.append":
                await self.add(message.get("text"))
            case "input_text.flush":
                await self.add(message.get("text") or "")
                await self.finish()
            case "input_text.end":
                self._has_ended = True
                if self.is_incomplete or self.texts < 0:
                    await self.finish()
                self.close_when_spoken()
            case other:
                raise ApiError(400, f"type {other[:50]!r}: is no event of this session", "unknown_event")

    async def _update(self, fields: object) -> None:
        if not isinstance(fields, dict):
            raise ApiError(400, "session: expected an object", "invalid_value", "session")
        settings = await self.configure(fields)
        answer: Message = {"type": "session.updated", "session": self.description()}
        if ignored := settings.body.ignored:
            log_ignored(self.connection.client, ignored)
            answer["ignored"] = list(ignored)
        await self.connection.send(answer)

    async def speak(self, settings: SpeechSettings, job: SpeechJob, text: ArrivingText) -> None:
        async for piece in encoded(job, settings.encoder(has_float_pcm=True)):
            await self.connection.send(mistral_delta(piece))
        await self.connection.send(mistral_done(job, text.characters))

    async def send_error(self, error: ApiError, message: Message) -> None:
        code = CODES.get(error.status, 3000)
        await self.connection.send({"type": "error", "error": {"message": error.message, "code": code}})
