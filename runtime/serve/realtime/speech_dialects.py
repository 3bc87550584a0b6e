"""Sockets whose texts arrive in pieces and are spoken, for clients of vLLM-Omni and of Mistral."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, closing, suppress
from typing import ClassVar

from voxport.runtime.serve.errors import ApiError, failure
from voxport.runtime.serve.fields import (
    SpeechFields,
    SpeechFormatField,
    Unsupported,
    format_field,
    parse_message,
)
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.connection import Connection, Message, SocketClosed
from voxport.runtime.serve.realtime.mistral_dialect import CODES
from voxport.runtime.serve.realtime.session import NORMAL, SocketSession
from voxport.runtime.serve.speech.api import encoded, speech_delta, speech_done
from voxport.runtime.serve.speech.job import ArrivingText, SpeechJob
from voxport.runtime.serve.speech.settings import SpeechSettings, settings_of


class SpeechSession(SocketSession):
    """Speaks texts one after another. Each is one job, and has one voice. Its error ends that text only."""

    fields: type[SpeechFields]  # of a message with settings

    def __init__(self, connection: Connection, models: Models, threads: Executor, **fixed: str):
        """`threads` wait for text. `fixed` are fields that no message changes."""
        self.connection, self.models, self._threads, self._fixed = connection, models, threads, fixed
        self.settings: SpeechSettings | None = None
        self._refusal: ApiError | None = None  # of the last settings
        self.texts = -1  # number of the last one
        self._text: ArrivingText | None = None  # of which more is to come
        self._speaking: asyncio.Task[None] | None = None
        self._has_ended = False  # the last text
        self._stack = ExitStack()  # deletes the voice of a recording

    @abstractmethod
    async def speak(self, settings: SpeechSettings, job: SpeechJob, text: ArrivingText) -> None:
        """Sends the speech of a text. Raises ApiError, or SocketClosed."""

    async def on_failure(self, error: ApiError) -> None:
        """Sends the error that ended a text."""
        await self.send_error(error, {})

    @property
    def is_busy(self) -> bool:
        return self._speaking is not None and not self._speaking.done()

    @property
    def is_incomplete(self) -> bool:
        return self._text is not None

    async def configure(self, fields: object) -> SpeechSettings:
        """Settings of the texts that follow. Raises ApiError, and texts are refused until it is mended."""
        if self._text:
            raise ApiError(400, "session: cannot change in the middle of a text", "session_busy")
        await self._wait_until_spoken()
        try:
            self._refusal = None
            if not isinstance(fields, dict):
                raise ApiError(400, "session: expected an object", "invalid_value", "session")
            return await self._set(fields)
        except ApiError as error:
            self._refusal = error
            raise

    async def _set(self, fields: Mapping[str, object]) -> SpeechSettings:
        body = parse_message(self.fields, {**fields, **self._fixed}, self.models.is_strict)
        for name in self._fixed:
            if fields.get(name) not in (None, "", self._fixed[name]):
                body.ignore(name)
        with ExitStack() as stack:
            self.settings = await settings_of(body, self.models, stack)
            self._stack.close()
            self._stack = stack.pop_all()
        return self.settings

    async def add(self, piece: object) -> None:
        """Takes a piece of a text, which is a new one after `finish`. Raises ApiError."""
        if not isinstance(piece, str):
            raise ApiError(400, "text: expected a string", "invalid_value", "text")
        await (self._text or await self._begin()).add(piece)

    async def finish(self) -> None:
        """The text is complete. Raises ApiError."""
        (self._text or await self._begin()).finish()
        self._text = None

    async def _wait_until_spoken(self) -> None:
        if self._speaking:
            await asyncio.wait((self._speaking,))

    async def _begin(self) -> ArrivingText:
        """Waits until the text before is spoken."""
        await self._wait_until_spoken()
        self.texts += 1
        self._text = text = ArrivingText(self.connection.limits.text_characters)
        self._speaking = asyncio.create_task(self._speak(text))
        return text

    async def _speak(self, text: ArrivingText) -> None:
        try:
            if self._refusal:
                raise self._refusal
            settings = self.settings or await self._set({})
            job = await settings.submit(text, self._threads)
            try:
                await self.speak(settings, job, text)
            finally:
                job.cancel()
        except SocketClosed:
            pass  # `Connection.receive` raises it in the session, too
        except Exception as raised:  # belongs to this text, whatever it is
            with suppress(SocketClosed):
                await self.on_failure(failure(raised))
        finally:
            text.finish()  # what follows of it is dropped
        if self._has_ended:
            await self.connection.close(NORMAL)

    def close(self) -> None:
        if self._speaking:
            self._speaking.cancel()
        if self._text:
            self._text.finish()
        self._stack.close()


class OmniFields(SpeechFields):
    """`session.config`. With `stream_audio` the sound of a part is sent while it is made."""

    type: str = ""
    response_format: SpeechFormatField = format_field("wav")
    stream_audio: bool = False
    speaker_embedding: Unsupported = None


class OmniSession(SpeechSession):
    """vLLM-Omni's dialect. A text has several parts, and each of them is a file of its own."""

    fields = OmniFields
    events: ClassVar = {
        "session.config": None,
        "input.text": ("text",),
        "input.done": (),
        "session.close": (),
    }

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

    async def speak(self, settings: SpeechSettings, job: SpeechJob, text: ArrivingText) -> None:
        part, count, result = None, 0, await job.read_marked()
        with ExitStack() as stack:
            while result is not None:
                if part is None and result:
                    part = OmniPart(self, settings, count)
                    stack.callback(part.encoder.close)
                    count += 1
                    await part.start(result if isinstance(result, str) else "")
                if part and isinstance(result, bytes):
                    await part.send(await part.encoder.encode(result))
                result = await job.read_marked()
                if part and not isinstance(result, bytes):
                    await part.end()
                    part = None
        done = self._done(count) | {"seed": settings.body.seed, "voice": settings.voice.name}
        await self.connection.send(done, settings.body.ignored or None)

    def _done(self, count: int) -> Message:
        return {"type": "session.done", "utterance_index": self.texts, "total_sentences": count}

    async def on_failure(self, error: ApiError) -> None:
        await self.send_error(error, {})
        await self.connection.send(self._done(0))

    async def send_error(self, error: ApiError, message: Message) -> None:
        await self.connection.send({"type": "error", "message": error.message, "code": error.code})


class OmniPart:
    def __init__(self, session: OmniSession, settings: SpeechSettings, number: int):
        self._settings, self._connection, self.encoder = settings, session.connection, settings.encoder()
        self._indices: Message = {"utterance_index": session.texts, "sentence_index": number}
        self._held, self._size = b"", 0  # bytes

    async def start(self, text: str) -> None:
        form = self._settings.body.response_format, self._settings.sample_rate
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

    response_format: SpeechFormatField = format_field("wav")


class MistralSpeechSession(SpeechSession):
    """Mistral's dialect. `input_text.flush` ends a text, `input_text.end` the session too."""

    fields = MistralSpeechFields
    events: ClassVar = {
        "session.update": ("session",),
        "input_text.append": ("text",),
        "input_text.flush": ("text",),
        "input_text.end": (),
    }

    def __init__(self, connection: Connection, models: Models, threads: Executor, model: str | None):
        """Raises ApiError on an unknown model."""
        self._model = models.speech_worker(model).name
        super().__init__(connection, models, threads, model=self._model)

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
                elif not self.is_busy:
                    await self.connection.close(NORMAL)

    async def _update(self, fields: object) -> None:
        settings = await self.configure({} if fields is None else fields)
        answer: Message = {"type": "session.updated", "session": self.description()}
        await self.connection.send(answer, settings.body.ignored)

    async def speak(self, settings: SpeechSettings, job: SpeechJob, text: ArrivingText) -> None:
        with closing(settings.encoder(has_float_pcm=True)) as encoder:
            async for piece in encoded(job, encoder):
                await self.connection.send(speech_delta(piece))
        await self.connection.send(speech_done(job, text.characters, settings.body))

    async def send_error(self, error: ApiError, message: Message) -> None:
        code = CODES.get(error.status, 3000)
        await self.connection.send({"type": "error", "error": {"message": error.message, "code": code}})
