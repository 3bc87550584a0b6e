"""`SpeechSession`: a socket whose texts arrive in pieces and are spoken, in one of two dialects."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import ExitStack, suppress

from voxport.runtime.serve.errors import ApiError, failure
from voxport.runtime.serve.fields import SpeechFields, parse_message
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.realtime.connection import Connection, SocketClosed
from voxport.runtime.serve.realtime.session import NORMAL, SocketSession
from voxport.runtime.serve.speech.arriving_text import ArrivingText
from voxport.runtime.serve.speech.job import SpeechJob
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
        self._closing: asyncio.Task[None] | None = None
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

    async def configure(self, fields: Mapping[str, object]) -> SpeechSettings:
        """Settings of the texts that follow. Raises ApiError, and texts are refused until it is mended."""
        if self._text:
            raise ApiError(400, "session: cannot change in the middle of a text", "session_busy")
        await self._wait_until_spoken()
        try:
            self._refusal = None
            return await self._set(fields)
        except ApiError as error:
            self._refusal = error
            raise

    async def _set(self, fields: Mapping[str, object]) -> SpeechSettings:
        body = parse_message(self.fields, {**fields, **self._fixed}, self.models.is_strict)
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

    def close_when_spoken(self) -> None:
        async def wait_and_close() -> None:
            await self._wait_until_spoken()
            await self.connection.close(NORMAL)

        self._closing = asyncio.create_task(wait_and_close())

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

    def close(self) -> None:
        for task in (self._speaking, self._closing):
            if task:
                task.cancel()
        if self._text:
            self._text.finish()
        self._stack.close()
