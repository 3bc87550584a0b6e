"""`Session`: one connection of a client of the Wyoming protocol."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from wyoming.event import Event
from wyoming.info import SelectProgram
from wyoming.ping import Ping, Pong

from voxport.runtime.serve.errors import ApiError, draining
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.serve.waiting import first_of
from voxport.runtime.serve.wyoming.events import Connection, error_event, parse
from voxport.runtime.serve.wyoming.info import describe
from voxport.runtime.serve.wyoming.replies import Replies
from voxport.runtime.serve.wyoming.speech import SpeechEvents
from voxport.runtime.serve.wyoming.transcription import AudioEvents

POLL_S = 0.5  # between checks of the time, and whether the server is shutting down


@dataclass(frozen=True)
class ServerContext:
    """What the server gives each session. `threads` wait for texts that arrive in pieces."""

    models: Models
    limits: Limits
    metrics: Metrics
    threads: Executor
    is_closing: Callable[[], bool]


class Session:
    """Reads events and sends replies at the same time.

    An error ends it, because a client that waits for audio or text does not expect another event on the
    connection. An unknown event is answered with an error and does not end it.
    """

    def __init__(self, connection: Connection, context: ServerContext):
        limits = context.limits
        self._connection, self._context, self._models = connection, context, context.models
        self._replies = Replies(limits.jobs_per_key, context.metrics)
        self._speech = SpeechEvents(connection, self._replies, limits, context.threads)
        self._audio = AudioEvents(connection, self._replies, limits)
        self._speech_model: str | None = None  # the selected programs
        self._transcription_model: str | None = None
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
        """The next event; None if the client has left. Raises ApiError."""
        receiving, since = asyncio.ensure_future(self._connection.receive()), time.monotonic()
        try:
            self._check_time(since)  # also if a client sends without a pause
            while not (await asyncio.wait((receiving,), timeout=POLL_S))[0]:
                if not self._client_must_send:
                    since = time.monotonic()
                self._check_time(since)
            return receiving.result()
        finally:
            receiving.cancel()

    @property
    def _client_must_send(self) -> bool:
        """Whether the next event has to come from the client."""
        return self._replies.are_done or self._speech.is_open or self._audio.is_open

    def _check_time(self, since: float) -> None:
        """`since`: when the client had to send the next event. Raises ApiError."""
        now, limits = time.monotonic(), self._context.limits
        silence = limits.body_s if self._is_first else limits.silent_socket_s
        if self._context.is_closing() or (self._models.is_draining and self._replies.are_done):
            raise draining()
        if now - since > silence:
            raise ApiError(400, f"no event in {silence:g} s; the connection ends", "session_idle")
        if now - self._started > limits.session_s:
            message = f"the connection has lasted {limits.session_s:g} s; start a new one"
            raise ApiError(400, message, "session_expired")

    async def _handle(self, event: Event) -> None:
        match event.type:
            case "describe":
                await self._connection.send(describe(self._models))
            case "ping":
                await self._connection.send(Pong(parse(Ping, event).text))
            case "select-program":
                self._select(parse(SelectProgram, event).name)
            case "synthesize" | "synthesize-start" | "synthesize-chunk" | "synthesize-stop":
                await self._speech.handle(event, self._speech_workers)
            case "transcribe" | "audio-start" | "audio-chunk" | "audio-stop":
                await self._audio.handle(event, self._transcription_worker)
            case other:
                error = ApiError(400, f"type {other[:50]!r}: is no event of this server", "unknown_event")
                await self._connection.send(error_event(error))

    def _select(self, name: str) -> None:
        if name in self._models.speech_workers:
            self._speech_model = name
        else:
            self._transcription_model = self._models.transcription_worker(name).name

    def _speech_workers(self) -> list[SpeechWorker]:
        """The workers of all speech models, or only of the selected one."""
        found = self._models.speech_workers
        return [found[self._speech_model]] if self._speech_model else list(found.values())

    def _transcription_worker(self, name: str | None) -> TranscriptionWorker:
        """The worker of the model `name`, else of the selected one, else the first. Raises ApiError."""
        found = self._models.transcription_workers
        if not found:
            raise ApiError(404, "this server has no model that transcribes", "model_not_found")
        return self._models.transcription_worker(name or self._transcription_model or next(iter(found)))
