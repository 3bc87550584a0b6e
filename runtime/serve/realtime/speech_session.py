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

MAX_REPLIES = 2  # texts of which not all is spoken


class SpeechSession(SocketSession):
    """Speaks texts one after another. Each is one job, and has one voice.

    The next text may arrive while one is spoken. An error of a text ends that text only.
    """

    fields: type[SpeechFields]  # of a message with settings

    def __init__(self, connection: Connection, models: Models, threads: Executor, **fixed: str | None):
        """`threads` wait for text. `fixed` are fields that no message changes."""
        self.connection, self.models, self._threads = connection, models, threads
        self._fixed = fixed
        self.settings: SpeechSettings | None = None
        self._current: ArrivingText | None = None  # of which more is to come
        self._replies: list[asyncio.Task[None]] = []
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
        return bool(self._replies)

    @property
    def is_incomplete(self) -> bool:
        return self._current is not None

    async def configure(self, fields: Mapping[str, object]) -> SpeechSettings:
        """Settings of the texts that follow. Waits until the texts before are spoken. Raises ApiError."""
        if self._current:
            raise ApiError(400, "session: cannot change in the middle of a text", "session_busy")
        body = parse_message(self.fields, {**fields, **self._fixed}, self.models.is_strict)
        await self._wait_until_spoken()
        with ExitStack() as stack:
            self.settings = await settings_of(body, self.models, stack)
            self._stack.close()
            self._stack = stack.pop_all()
        return self.settings

    async def add(self, piece: object) -> None:
        """Takes a piece of a text, which is a new one after `finish`. Raises ApiError."""
        if not isinstance(piece, str):
            raise ApiError(400, "text: expected a string", "invalid_value", "text")
        await (self._current or await self._begin()).add(piece)

    async def finish(self) -> None:
        """The text is complete. Raises ApiError."""
        (self._current or await self._begin()).finish()
        self._current = None

    def close_when_spoken(self) -> None:
        async def wait_and_close() -> None:
            await self._wait_until_spoken()
            await self.connection.close(NORMAL)

        self._closing = asyncio.create_task(wait_and_close())

    async def _wait_until_spoken(self, most: int = 0) -> None:
        """Waits until at most so many texts are not spoken to their end."""
        while len(self._replies) > most:
            await asyncio.wait(self._replies[:1])

    async def _begin(self) -> ArrivingText:
        settings = self.settings or await self.configure({})
        await self._wait_until_spoken(MAX_REPLIES - 1)
        self._current = text = ArrivingText(self.connection.limits.text_characters)
        reply = asyncio.create_task(self._reply(settings, text, self._replies[-1:]))
        self._replies.append(reply)
        reply.add_done_callback(self._replies.remove)
        return text

    async def _reply(
        self, settings: SpeechSettings, text: ArrivingText, before: list[asyncio.Task[None]]
    ) -> None:
        """Speaks a text after the reply `before` it."""
        try:
            if before:
                await asyncio.wait(before)
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
        for task in (*self._replies, self._closing):
            if task:
                task.cancel()
        if self._current:
            self._current.finish()
        self._stack.close()
