"""`Session`: the common part of the three dialects."""

import itertools
import logging
from abc import ABC, abstractmethod
from contextlib import suppress

from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.realtime.connection import (
    INTERNAL,
    NORMAL,
    Message,
    SessionEnded,
    SocketClosed,
    SocketError,
)
from voxport.runtime.serve.realtime.context import SessionContext
from voxport.runtime.serve.realtime.utterances import Utterance, UtteranceHandlers, Utterances
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.transcription import TranscriptDelta

log = logging.getLogger(__name__)


class ProtocolHandler(ABC):
    """Handles the messages of one socket. An error of a message leaves the socket open."""

    def __init__(self, context: SessionContext):
        self.context, self.connection = context, context.connection

    async def run(self) -> None:
        """Handles messages. Raises SessionEnded, SocketClosed or SocketError."""
        while True:
            message: Message = {}
            try:
                message = await self.connection.receive(self)
                await self.handle(message)
            except ApiError as error:
                await self.send_error(error, message)

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether something is transcribed, whose text is not sent yet."""

    @property
    @abstractmethod
    def is_finishing(self) -> bool:
        """Whether the client waits for text, and all its audio has arrived."""

    @abstractmethod
    async def handle(self, message: Message) -> None:
        """Raises ApiError on a message that is wrong."""

    @abstractmethod
    async def send_error(self, error: ApiError, message: Message) -> None:
        """`message` is the one that was wrong."""

    @abstractmethod
    def close(self) -> None:
        """Ends everything that is transcribed."""


class Session(ProtocolHandler):
    """One dialect on one socket."""

    def __init__(self, context: SessionContext):
        super().__init__(context)
        self._utterances: Utterances | None = None
        self._numbers, self._events = itertools.count(1), 0  # of utterances, of events

    @property
    def utterances(self) -> Utterances | None:
        return self._utterances

    @property
    def is_busy(self) -> bool:
        return self._utterances is not None and self._utterances.are_pending

    @property
    def is_finishing(self) -> bool:
        return self._utterances is not None and self._utterances.are_pending and not self._utterances.current

    def use(self, worker: TranscriptionWorker) -> Utterances:
        """Transcribes with a model from now on.

        Raises ApiError where it is no model for live audio, or audio of another model is still transcribed.
        """
        worker.check_live_slots()
        before = self._utterances
        if before and before.worker is worker:
            return before
        if before and before.are_pending:
            raise ApiError(400, "the model cannot change while audio is transcribed", "session_busy")
        handlers = UtteranceHandlers(self.on_delta, self.on_end, self.on_job_error)
        self._utterances = Utterances(self.context, worker, self._numbers, handlers)
        return self._utterances

    def event_id(self) -> str:
        self._events += 1
        return f"event_{self.context.number}_{self._events}"

    @abstractmethod
    async def on_delta(self, utterance: Utterance, delta: TranscriptDelta) -> None: ...

    @abstractmethod
    async def on_end(self, utterance: Utterance, text: str) -> None: ...

    @abstractmethod
    async def on_job_error(self, utterance: Utterance, error: ApiError) -> None: ...

    def close(self) -> None:
        if self._utterances:
            self._utterances.close()


async def run_session(session: ProtocolHandler, greeting: Message) -> None:
    """Sends the greeting, runs a session and closes its socket, whatever happens."""
    connection, code, reason = session.connection, NORMAL, ""
    try:
        await connection.send(greeting)
        await session.run()
    except (SessionEnded, SocketClosed):
        pass
    except SocketError as ended:
        code, reason = ended.code, ended.error.code or ""
        with suppress(SocketClosed):
            await session.send_error(ended.error, {})
    except Exception:
        log.exception("a session failed")
        code, reason = INTERNAL, "internal_error"
    finally:
        session.close()
        await connection.close(code, reason)
