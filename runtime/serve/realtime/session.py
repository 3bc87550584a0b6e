"""`Session`: the common part of the three dialects."""

import itertools
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress

from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.realtime.connection import (
    INTERNAL,
    NORMAL,
    Message,
    SessionContext,
    SessionEnded,
    SocketClosed,
    SocketError,
)
from voxport.runtime.serve.realtime.utterances import Utterance, Utterances
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.speech_to_text import TranscriptDelta

log = logging.getLogger(__name__)


class Session(ABC):
    """One dialect on one socket."""

    def __init__(self, context: SessionContext):
        self.context, self.connection = context, context.connection
        self.utterances: Utterances | None = None
        self._numbers, self._events = itertools.count(1), 0  # numbers of utterances and of events

    @property
    def is_busy(self) -> bool:
        """Whether something is transcribed, whose text is not sent yet."""
        return self.utterances is not None and self.utterances.are_pending

    @property
    def is_finishing(self) -> bool:
        """Whether the client waits for text, and all its audio has arrived."""
        return self.utterances is not None and self.is_busy and not self.utterances.current

    def use(self, worker: TranscriptionWorker) -> Utterances:
        """Transcribes with a model from now on.

        Raises ApiError if it is no model for live audio, or audio of another model is still transcribed.
        """
        worker.check_live_slots()
        before = self.utterances
        if before and before.worker is worker:
            return before
        if before and before.are_pending:
            raise ApiError(400, "the model cannot change while audio is transcribed", "session_busy")
        self.utterances = Utterances(self.context, worker, self._numbers, self)
        return self.utterances

    def event_id(self) -> str:
        self._events += 1
        return f"event_{self.context.number}_{self._events}"

    @abstractmethod
    async def handle(self, message: Message) -> None:
        """Raises ApiError on a message that is wrong."""

    @abstractmethod
    async def send_error(self, error: ApiError, message: Message) -> None:
        """`message` is the one that was wrong."""

    @abstractmethod
    async def on_delta(self, utterance: Utterance, delta: TranscriptDelta) -> None: ...

    @abstractmethod
    async def on_end(self, utterance: Utterance, text: str) -> None: ...

    @abstractmethod
    async def on_job_error(self, utterance: Utterance, error: ApiError) -> None: ...

    def close(self) -> None:
        """Ends everything that is transcribed."""
        if self.utterances:
            self.utterances.close()


async def run_session(
    session: Session, greeting: Message, choose: Callable[[Message], Session] | None = None
) -> None:
    """Sends the greeting, handles messages and closes the socket, whatever happens.

    An error of a message leaves the socket open. `choose` returns the session for the first right message, or
    raises ApiError; `session` answers those before.
    """
    connection, code, reason = session.connection, NORMAL, ""
    try:
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
