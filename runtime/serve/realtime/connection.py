"""`Connection`: one socket, with JSON messages and limits of time and size."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydantic_core import from_json
from starlette.types import Message as AsgiMessage
from starlette.websockets import WebSocket, WebSocketState

from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError, draining
from voxport.runtime.serve.limits import MIB, Limits
from voxport.runtime.serve.models import Models

NORMAL, TOO_LARGE, INTERNAL, SHUTTING_DOWN, TRY_LATER = 1000, 1009, 1011, 1012, 1013
POLL_S = 0.5  # between checks whether the server is shutting down
Message = Json  # from a client or from the server


class SocketClosed(Exception):
    """The client has closed the socket."""


class SessionEnded(Exception):
    """`Connection.end` was called: nothing follows in this session."""


class SocketError(Exception):
    """The session ends: `error` is sent to the client, and the socket is closed with `code`."""

    def __init__(self, error: ApiError, code: int):
        super().__init__(error.message)
        self.error, self.code = error, code


class SessionState(Protocol):
    """The state of a session that its connection reads."""

    @property
    def is_busy(self) -> bool:
        """Whether something is transcribed, whose text is not sent yet."""

    @property
    def is_finishing(self) -> bool:
        """Whether the client waits for text, and all its audio has arrived."""


class Connection:
    """`receive` and `send` may be called by several tasks; messages are sent whole and in order."""

    def __init__(self, socket: WebSocket, limits: Limits, is_draining: Callable[[], bool]):
        self._socket, self._limits, self._is_draining = socket, limits, is_draining
        self._started = time.monotonic()
        self._sending = asyncio.Lock()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_first = True

    def end(self) -> None:
        """Ends the session: `receive` raises SessionEnded, also if it waits already."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def receive(self, session: SessionState) -> Message:
        """The next JSON object. Raises ApiError on any other message, or what ends the session:

        SocketClosed, SocketError or SessionEnded. A server that shuts down ends sessions that are not busy.
        """
        frame = await self._next_frame(session)
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
        """Servers other than ours may take larger messages, as the server of Ray does. Raises SocketError."""
        size, most = _size(frame), int(self._limits.message_mib * MIB)
        if size > most:
            message = f"a message of {size} bytes; expected at most {most}"
            raise SocketError(ApiError(413, message, "message_too_large"), TOO_LARGE)

    async def _next_frame(self, session: SessionState) -> AsgiMessage:
        since, receiving = time.monotonic(), asyncio.ensure_future(self._socket.receive())
        try:
            self._check_limits(since, session.is_busy)  # for a client that sends without a pause, too
            while not (self._ended.done() or receiving.done()):
                if session.is_finishing:
                    since = time.monotonic()  # the client waits for the server
                self._check_limits(since, session.is_busy)
                await asyncio.wait(
                    (receiving, self._ended), timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
            if self._ended.done():
                raise SessionEnded
            self._is_first = False
            return receiving.result()
        finally:
            receiving.cancel()

    def _check_limits(self, since: float, is_busy: bool) -> None:
        """`since`: when the client was to send the next message. Raises SocketError."""
        now, limits = time.monotonic(), self._limits
        silence = limits.body_s if self._is_first else limits.silent_socket_s
        if self._is_draining() and not is_busy:
            raise SocketError(draining(), SHUTTING_DOWN)
        if now - since > silence:
            message = f"no message in {silence:g} s; the session ends"
            raise SocketError(ApiError(400, message, "session_idle"), NORMAL)
        if now - self._started > limits.session_s:
            message = f"the session has lasted {limits.session_s:g} s; start a new one"
            raise SocketError(ApiError(400, message, "session_expired"), NORMAL)

    async def send(self, message: Message) -> None:
        """Raises SocketClosed."""
        try:
            text = json.dumps(message, ensure_ascii=False)
            async with self._sending:
                await self._socket.send_text(text)
        except (RuntimeError, OSError):
            raise SocketClosed from None
        except Exception as error:  # the exceptions of a closed socket have no common base
            raise SocketClosed from error

    async def close(self, code: int, reason: str = "") -> None:
        if self._socket.application_state == WebSocketState.CONNECTED:
            try:
                await asyncio.wait_for(
                    self._socket.close(code, reason.encode()[:120].decode(errors="ignore")), 5
                )
            except Exception:  # it is closed already
                return


@dataclass(frozen=True)
class SessionContext:
    """What a session needs besides the messages of its client. `number` differs for each socket."""

    connection: Connection
    models: Models
    limits: Limits
    key: str
    number: str


def _size(frame: AsgiMessage) -> int:
    """Bytes of the content."""
    content = frame.get("text") or frame.get("bytes") or b""
    return len(content.encode()) if isinstance(content, str) else len(content)
