"""`Connection`: the messages of one socket."""

import asyncio
import json
import uuid
from contextlib import suppress

from pydantic_core import from_json
from starlette.types import Message as AsgiMessage
from starlette.websockets import WebSocket, WebSocketState

from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError, SessionEnds
from voxport.runtime.serve.ignored import UnknownFields, at_most, log_ignored
from voxport.runtime.serve.limits import MIB
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.session_clock import SessionClock, SessionState

CLOSE_S = 5.0
Message = Json  # from a client or from the server


class SocketClosed(Exception):
    """One side has closed the socket."""


class Connection:
    """`receive` and `send` may be called by several tasks; messages are sent whole and in order.

    `number` differs for each socket.
    """

    def __init__(self, socket: WebSocket, models: Models):
        self._socket, self.limits, self.number = socket, models.limits, uuid.uuid4().hex[:12]
        self._clock = SessionClock(models.limits, lambda: models.is_draining)
        self.unknown = UnknownFields(models.is_strict)
        self._sending, self._has_refused_binary = asyncio.Lock(), False

    async def receive(self, state: SessionState) -> Message:
        """The next JSON object. Raises ApiError on any other message, and SocketClosed or SessionEnds.

        Binary messages are refused once, because a client that sends audio in them sends many.
        """
        frame = await self._clock.receive(self._socket.receive(), state)
        while self._has_refused_binary and frame.get("bytes") is not None:
            frame = await self._clock.receive(self._socket.receive(), state)
        if frame["type"] == "websocket.disconnect":
            raise SocketClosed
        self._check_size(frame)
        text = frame.get("text")
        if text is None:
            self._has_refused_binary = True
            reason = "a binary message; send a JSON object as text, with audio in base64. Others are ignored"
            raise ApiError(400, reason, "invalid_event")
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

    async def send(self, message: Message | bytes, ignored: tuple[str, ...] | None = None) -> None:
        """Raises SocketClosed. `ignored`: fields of an update without effect.

        An object also names the unknown fields of the messages before.
        """
        if isinstance(message, dict):
            names = at_most((ignored or ()) + self.unknown.take())
            log_ignored(self._socket.headers.get("user-agent", ""), names)
            if names or ignored is not None:
                message = {**message, "ignored": list(names)}
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
