"""`Session`: one connection of a client of the Wyoming protocol."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor

from wyoming.event import Event
from wyoming.info import SelectProgram
from wyoming.ping import Ping, Pong

from runtime.serve.errors import ApiError, draining
from runtime.serve.limits import Limits
from runtime.serve.listen.worker import ListenWorker
from runtime.serve.metrics import Metrics
from runtime.serve.models import Models
from runtime.serve.speech.worker import SpeechWorker
from runtime.serve.waiting import first_of
from runtime.serve.wyoming.events import Connection, error_event, parse
from runtime.serve.wyoming.info import describe
from runtime.serve.wyoming.listening import AudioEvents
from runtime.serve.wyoming.replies import Replies
from runtime.serve.wyoming.speech import SpeechEvents

POLL_S = 0.5  # between looks at the time, and at whether the server is shutting down


class Session:
    """Reads events and sends replies at the same time.

    An error ends it, because a client that waits for audio or text does not expect another event on the
    connection. An unknown event is answered with an error and does not end it.
    """

    def __init__(
        self,
        connection: Connection,
        models: Models,
        limits: Limits,
        metrics: Metrics,
        threads: Executor,
        is_closing: Callable[[], bool],
    ):
        self._connection, self._models, self._limits = connection, models, limits
        self._is_closing = is_closing
        self._replies = Replies(limits.jobs_per_key, metrics)
        self._speech = SpeechEvents(connection, self._replies, limits, threads)
        self._audio = AudioEvents(connection, self._replies, limits)
        self._speaker: str | None = None  # the selected programs
        self._listener: str | None = None
        self._started, self._is_first = time.monotonic(), True

    async def run(self) -> None:
        """Returns when the client has left. Raises ApiError, UsageError or ClientLeft."""
        try:
            await first_of(self._read(), self._replies.run())
        finally:
            self._replies.cancel()

    async def _read(self) -> None:
        while (event := await self._receive()) is not None:
            self._is_first = False
            await self._handle(event)

    async def _receive(self) -> Event | None:
        """The next event; None where the client has left. Raises ApiError."""
        receiving, since = asyncio.ensure_future(self._connection.receive()), time.monotonic()
        try:
            self._check_time(since)  # of a client that sends without a pause, too
            while not (await asyncio.wait((receiving,), timeout=POLL_S))[0]:
                if not self._is_due:
                    since = time.monotonic()
                self._check_time(since)
            return receiving.result()
        finally:
            receiving.cancel()

    @property
    def _is_due(self) -> bool:
        """Whether the next event is one of the client."""
        return self._replies.are_done or self._speech.is_open or self._audio.is_open

    def _check_time(self, since: float) -> None:
        """`since`: when the client had to send the next event. Raises ApiError."""
        now, limits = time.monotonic(), self._limits
        silence = limits.header_s if self._is_first else limits.silent_socket_s
        if self._is_closing() or (self._models.is_draining and self._replies.are_done):
            raise draining()
        if now - since > silence:
            raise ApiError(400, f"no event in {silence:g} s; the connection ends", "session_idle")
        if now - self._started > limits.session_s:
            message = f"the connection has lasted {limits.session_s:g} s; start a new one"
            raise ApiError(400, message, "session_expired")

    async def _handle(self, event: Event) -> None:
        match event.type:
            case "describe":
                await self._connection.send(await asyncio.to_thread(describe, self._models))
            case "ping":
                await self._connection.send(Pong(parse(Ping, event).text))
            case "select-program":
                self._select(parse(SelectProgram, event).name)
            case "synthesize" | "synthesize-start" | "synthesize-chunk" | "synthesize-stop":
                await self._speech.handle(event, self._speakers)
            case "transcribe" | "audio-start" | "audio-chunk" | "audio-stop":
                await self._audio.handle(event, self._listening)
            case other:
                error = ApiError(400, f"type {other[:50]!r}: is no event of this server", "unknown_event")
                await self._connection.send(error_event(error))

    def _select(self, name: str) -> None:
        if name in self._models.speaking:
            self._speaker = name
        else:
            self._listener = self._models.listener(name).name

    def _speakers(self) -> list[SpeechWorker]:
        """The models that speak, or only the selected one."""
        found = self._models.speaking
        return [found[self._speaker]] if self._speaker else list(found.values())

    def _listening(self, name: str | None) -> ListenWorker:
        """The model of that name, else the selected one, else the first. Raises ApiError."""
        found = self._models.listening
        if not found:
            raise ApiError(404, "this server has no model that transcribes", "model_not_found")
        return self._models.listener(name or self._listener or next(iter(found)))
