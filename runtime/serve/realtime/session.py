"""`Connection`: one socket. `Session`: its live audio, as a series of utterances in one of three dialects."""

import asyncio
import base64
import binascii
import json
import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from pydantic_core import from_json
from starlette.types import Message as AsgiMessage
from starlette.websockets import WebSocket, WebSocketState

from voxport.bundle.json_types import Json
from voxport.runtime.audio.files import SAMPLE_BYTES, from_pcm16
from voxport.runtime.audio.sources import Converter
from voxport.runtime.serve.errors import ApiError, SessionEnds
from voxport.runtime.serve.limits import MIB
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.session_clock import SessionClock, SessionState
from voxport.runtime.serve.transcription.job import TranscriptionJob, too_far_ahead
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.speech_to_text import TranscriptDelta

NORMAL, INTERNAL = 1000, 1011  # codes with which a socket is closed
CLOSE_CODES = {"message_too_large": 1009, "server_shutting_down": 1012, "audio_too_far_ahead": 1013}
CLOSE_S = 5.0
Message = Json  # from a client or from the server
log = logging.getLogger(__name__)


class SocketClosed(Exception):
    """One side has closed the socket."""


class Connection:
    """`receive` and `send` may be called by several tasks; messages are sent whole and in order.

    `number` differs for each socket.
    """

    def __init__(self, socket: WebSocket, models: Models):
        self._socket, self.limits, self.number = socket, models.limits, uuid.uuid4().hex[:12]
        self._clock = SessionClock(models.limits, lambda: models.is_draining)
        self._sending = asyncio.Lock()

    async def receive(self, state: SessionState) -> Message:
        """The next JSON object. Raises ApiError on any other message, and SocketClosed or SessionEnds."""
        frame = await self._clock.receive(self._socket.receive(), state)
        if frame["type"] == "websocket.disconnect":
            raise SocketClosed
        self._check_size(frame)
        text = frame.get("text")
        if text is None:
            raise ApiError(400, "a binary message; expected a JSON object as text", "invalid_event")
        try:
            message = from_json(text, allow_inf_nan=False)
        except ValueError as error:
            raise ApiError(400, f"the message is not JSON: {str(error)[:100]}", "invalid_json") from None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise ApiError(400, "expected a JSON object with a type", "invalid_event")
        return message

    def _check_size(self, frame: AsgiMessage) -> None:
        """Servers other than ours may take larger messages, as the server of Ray does."""
        content, most = frame.get("text") or frame.get("bytes") or b"", int(self.limits.message_mib * MIB)
        size = len(content.encode() if isinstance(content, str) else content)
        if size > most:
            message = f"a message of {size} bytes; expected at most {most}"
            raise SessionEnds(ApiError(413, message, "message_too_large"))

    @property
    def client(self) -> str:
        return self._socket.headers.get("user-agent", "")

    async def send(self, message: Message | bytes) -> None:
        """Raises SocketClosed."""
        try:
            async with self._sending:
                if isinstance(message, bytes):
                    await self._socket.send_bytes(message)
                else:
                    await self._socket.send_text(json.dumps(message, ensure_ascii=False))
        except Exception as error:  # the exceptions of a closed socket have no common base
            raise SocketClosed from error

    async def close(self, code: int, reason: str = "") -> None:
        if self._socket.application_state == WebSocketState.CONNECTED:
            with suppress(Exception):  # it is closed already
                await asyncio.wait_for(self._socket.close(code, reason), CLOSE_S)


@dataclass
class Utterance:
    """Audio up to a commit."""

    number: int  # in the session
    job: TranscriptionJob
    converter: Converter
    rate: int
    samples: int = 0  # received, at `rate`
    reading: asyncio.Task[None] = field(init=False, repr=False)

    @property
    def seconds(self) -> float:
        return self.samples / self.rate


def decode_pcm(text: object) -> np.ndarray:
    """Base64 of 16-bit little-endian samples -> float32 [n], n at least 1. Raises ApiError."""
    if not isinstance(text, str):
        raise ApiError(400, "audio: expected base64 of 16-bit samples", "invalid_audio", "audio")
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ApiError(400, "audio: is not base64", "invalid_audio", "audio") from None
    if not content or len(content) % SAMPLE_BYTES:
        found = f"{len(content)} bytes"
        raise ApiError(400, f"audio: {found}, expected whole 16-bit samples", "invalid_audio", "audio")
    return from_pcm16(content)


class Session(ABC):
    """Transcribes utterances one after another in one live stream.

    Audio of the next utterance is accepted while one finishes. `worker` is the model, `current` the utterance
    whose audio arrives.
    """

    def __init__(self, connection: Connection, models: Models):
        self.connection, self.models = connection, models
        self.worker: TranscriptionWorker | None = None
        self.current: Utterance | None = None
        self._pending: list[Utterance] = []  # whose text is not sent yet
        self._refusal: ApiError | None = None  # for the utterance whose audio arrives
        self._utterances = self._events = 0  # so far

    @abstractmethod
    async def handle(self, message: Message) -> None:
        """Raises ApiError on a message that is wrong."""

    @abstractmethod
    async def send_error(self, error: ApiError, message: Message) -> None:
        """`message` is the one that was wrong."""

    @abstractmethod
    async def on_delta(self, utterance: Utterance, delta: TranscriptDelta) -> None:
        """Sends new text."""

    @abstractmethod
    async def on_end(self, utterance: Utterance) -> None:
        """Sends the whole text."""

    async def on_failure(self, utterance: Utterance, error: ApiError) -> None:
        """Sends the error that ended an utterance."""
        await self.send_error(error, {})

    @property
    def is_busy(self) -> bool:
        return bool(self._pending)

    @property
    def is_incomplete(self) -> bool:
        return self.current is not None

    def event_id(self) -> str:
        self._events += 1
        return f"event_{self.connection.number}_{self._events}"

    def use(self, model: str) -> TranscriptionWorker:
        """Transcribes with a model from now on.

        Raises ApiError if it is no model for live audio, or audio of another model is still transcribed.
        """
        worker = self.models.live_worker(model)
        if self._pending and worker is not self.worker:
            raise ApiError(400, "the model cannot change while audio is transcribed", "session_busy")
        self.worker = worker
        return worker

    async def append(self, samples: np.ndarray, rate: int, delay_ms: int | None) -> None:
        """Adds samples float32 [n] to the current utterance, or begins one. Waits if too much is ahead.

        Raises ApiError if no live stream is free, and SessionEnds if the wait takes too long.
        """
        utterance = self.current or await self._begin(rate, delay_ms)
        utterance.samples += len(samples)
        utterance.job.feed(utterance.converter.feed(samples))
        await utterance.job.wait_for_room(self.connection.limits.ahead_s)

    async def _begin(self, rate: int, delay_ms: int | None) -> Utterance:
        """Waits while two others are not transcribed to their end.

        The rest of an utterance that is refused is refused as well.
        """
        assert self.worker is not None
        if self._refusal:
            raise self._refusal
        ahead_s = self.connection.limits.ahead_s
        if len(self._pending) > 1:
            await asyncio.wait((self._pending[0].reading,), timeout=ahead_s)
            if len(self._pending) > 1:
                raise too_far_ahead(ahead_s)
        try:
            job = self.worker.submit_live(delay_ms, self)
        except ApiError as error:
            self._refusal = error
            raise
        self._utterances += 1
        converter = Converter(rate, self.worker.task.sample_rate)
        self.current = utterance = Utterance(self._utterances, job, converter, rate)
        utterance.reading = asyncio.create_task(self._read(utterance))
        self._pending.append(utterance)
        return utterance

    def check_refused(self) -> None:
        """Raises ApiError if the audio since the last utterance was refused. Audio begins the next."""
        refusal, self._refusal = self._refusal, None
        if refusal:
            raise refusal

    def finish(self) -> None:
        """Ends the current utterance; its text is complete later. Raises ApiError if there is none."""
        self.check_refused()
        utterance, self.current = self.current, None
        if utterance is None:
            raise ApiError(400, "there is no audio to transcribe", "invalid_audio")
        utterance.job.feed(utterance.converter.finish())
        utterance.job.finish()

    def clear(self) -> None:
        """Cancels the current utterance."""
        self._refusal = None
        utterance, self.current = self.current, None
        if utterance:
            utterance.job.cancel()
            utterance.reading.cancel()
            self._pending.remove(utterance)

    def close(self) -> None:
        for utterance in self._pending:
            utterance.job.cancel()
            utterance.reading.cancel()

    async def _read(self, utterance: Utterance) -> None:
        try:
            while (delta := await utterance.job.read()) is not None:
                await self.on_delta(utterance, delta)
            await self.on_end(utterance)
        except ApiError as error:
            if self.current is utterance:
                self._refusal = error
            with suppress(SocketClosed):
                await self.on_failure(utterance, error)
        except SocketClosed:
            pass  # `Connection.receive` raises it in the session, too
        finally:
            utterance.job.cancel()
            if utterance in self._pending:
                self._pending.remove(utterance)
            if self.current is utterance:
                self.current = None


class SocketSession(SessionState, Protocol):
    """What a client and the server say on a socket."""

    connection: Connection

    async def handle(self, message: Message) -> None:
        """Raises ApiError on a message that is wrong."""

    async def send_error(self, error: ApiError, message: Message) -> None:
        """`message` is the one that was wrong."""

    def close(self) -> None:
        """Ends what runs."""


async def run_session(
    session: SocketSession,
    greeting: Message | None,
    choose: Callable[[Message], SocketSession] | None = None,
) -> None:
    """Sends the greeting, if there is one, handles messages and closes the socket, whatever happens.

    An error of a message leaves the socket open. `choose` returns the session for the first right message, or
    raises ApiError; `session` answers those before.
    """
    connection, code, reason = session.connection, NORMAL, ""
    try:
        if greeting:
            await connection.send(greeting)
        while True:
            message: Message = {}
            try:
                message = await connection.receive(session)
                if choose:
                    session, choose = choose(message), None
                await session.handle(message)
            except ApiError as error:
                await session.send_error(error, message)
    except SocketClosed:
        pass
    except SessionEnds as ended:
        reason = ended.error.code or ""
        code = CLOSE_CODES.get(reason, NORMAL)
        with suppress(SocketClosed):
            await session.send_error(ended.error, {})
    except Exception:
        log.exception("a session failed")
        code, reason = INTERNAL, "internal_error"
    finally:
        session.close()
        await connection.close(code, reason)
