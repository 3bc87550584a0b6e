"""Text that arrives in pieces, as vLLM-Omni and Mistral speak it."""

from concurrent.futures import Executor
from dataclasses import dataclass
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
from voxport.runtime.serve.speech.encoders import Encoder
from voxport.runtime.serve.speech.job import SpeechJob
from voxport.runtime.serve.speech.settings import SpeechSettings


class OmniFields(SpeechFields):
    """`session.config`. With `stream_audio` the sound of a part is sent while it is made."""

    type: str = ""
    response_format: SpeechFormatField = "wav"
    stream_audio: bool = False
    word_timestamps: Annotated[bool, only((False,), "speech has no times of words", UNSUPPORTED)] = False
    speaker_embedding: Unsupported = None


@dataclass
class Part:
    """A part of a text, which is a file of its own."""

    connection: Connection
    encoder: Encoder
    indices: Message
    is_streamed: bool
    held: bytes = b""
    size: int = 0  # bytes

    async def write(self, content: bytes) -> None:
        self.size += len(content)
        if self.is_streamed and content:
            await self.connection.send(content)
        elif content:
            self.held += content

    async def end(self, has_failed: bool = False) -> None:
        if self.held:
            await self.connection.send(self.held)
        done = {"type": "audio.done", **self.indices, "total_bytes": self.size, "error": has_failed}
        await self.connection.send(done)


class OmniSession(SpeechSession):
    """vLLM-Omni's dialect. A text has several parts, and each of them is a file of its own."""

    fields = OmniFields

    def __init__(self, connection: Connection, models: Models, threads: Executor):
        super().__init__(connection, models, threads)
        self._texts = 0  # so far

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
        part, count = None, 0
        try:
            while (result := await job.read_marked()) is not None:
                if part and isinstance(result, str):
                    await part.write(await part.encoder.finish())
                    await part.end()
                    part = None
                if result and part is None:
                    part = await self._start(settings, result if isinstance(result, str) else "", count)
                    count += 1
                if part and isinstance(result, bytes):
                    await part.write(await part.encoder.encode(result))
        except ApiError:
            if part:
                await part.end(has_failed=True)
            raise
        if part:
            await part.write(await part.encoder.finish())
            await part.end()
        await self._send_done(count, settings.body.ignored)

    async def _start(self, settings: SpeechSettings, text: str, number: int) -> Part:
        body = settings.body
        assert isinstance(body, OmniFields)
        indices: Message = {"utterance_index": self._texts, "sentence_index": number}
        form = {"format": body.response_format, "sample_rate": settings.worker.task.sample_rate}
        await self.connection.send({"type": "audio.start", **indices, "sentence_text": text, **form})
        return Part(self.connection, settings.encoder(), indices, body.stream_audio)

    async def _send_done(self, count: int, ignored: tuple[str, ...] = ()) -> None:
        done: Message = {"type": "session.done", "utterance_index": self._texts, "total_sentences": count}
        self._texts += 1
        if ignored:
            log_ignored(self.connection.client, ignored)
            done["ignored"] = list(ignored)
        await self.connection.send(done)

    async def on_failure(self, error: ApiError) -> None:
        await self.send_error(error, {})
        await self._send_done(0)

    async def send_error(self, error: ApiError, message: Message) -> None:
        await self.connection.send({"type": "error", "message": error.message, "code": error.code})


class MistralSpeechFields(SpeechFields):
    """The object `session` of `session.update`."""

    response_format: SpeechFormatField = "wav"
    streaming_mode: Annotated[str, HINT] = "responsive"
    expressiveness: Annotated[float, HINT] = 1


class MistralSpeechSession(SpeechSession):
    """Mistral's dialect. `input_text.flush` ends a text, `input_text.end` the session too."""

    fields = MistralSpeechFields

    def __init__(self, connection: Connection, models: Models, threads: Executor, model: str | None):
        self._worker = models.speech_worker(model)
        super().__init__(connection, models, threads, model=self._worker.name)
        self._has_begun = self._has_ended = False

    def description(self) -> Message:
        """The effective configuration of the session."""
        body = self.settings.body if self.settings else MistralSpeechFields()
        return {
            "request_id": f"ws_{self.connection.number}",
            "model": self._worker.name,
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
                await self._take(message.get("text"))
            case "input_text.flush":
                if message.get("text") is not None:
                    await self._take(message["text"])
                self._has_begun = True
                await self.finish()
            case "input_text.end":
                self._has_ended = True
                if self.is_incomplete or not self._has_begun:
                    await self.finish()
                self.close_when_spoken()
            case other:
                raise ApiError(400, f"type {other[:50]!r}: is no event of this session", "unknown_event")

    async def _take(self, text: object) -> None:
        self._has_begun = True
        await self.add(text)

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
