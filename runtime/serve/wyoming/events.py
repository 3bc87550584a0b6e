"""Events of the Wyoming protocol on a socket, with bounds of size and time.

An event is a line of JSON, then `data_length` bytes of JSON, then `payload_length` bytes. The reader of the
package `wyoming` has no bounds, so this module has its own.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json
from wyoming.error import Error
from wyoming.event import Event, Eventable, async_write_event

from voxport.bundle.json_types import Json
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.http.responses import ClientLeft
from voxport.runtime.serve.limits import MIB
from voxport.runtime.serve.waiting import first_of

HEADER_BYTES, DATA_BYTES, PAYLOAD_BYTES = 65_536, 65_536, MIB
OBJECT_BYTES = 1024  # that an event takes besides its content
LINGER_S = 2.0  # for which input is read and dropped before a close
DROPPED_BYTES = 65_536  # at a time
INVALID = "invalid_event"
Parsed = TypeVar("Parsed")


async def read_event(reader: asyncio.StreamReader) -> Event | None:
    """The next event; None where the client has left. `reader` has the limit HEADER_BYTES.

    Raises ApiError. The events that follow cannot be found then, so the connection has to end. This also
    stops web pages: the first line of an HTTP request is not JSON.
    """
    try:
        line = await reader.readuntil(b"\n")
        header = _object(line, "header")
        kind, data = header.get("type"), header.get("data") or {}
        if not isinstance(kind, str) or not isinstance(data, dict):
            raise ApiError(400, "header: expected a type, a string, and data, an object", INVALID)
        data_size = _length(header, "data_length", DATA_BYTES)
        payload_size = _length(header, "payload_length", PAYLOAD_BYTES)
        if data_size:
            data |= _object(await reader.readexactly(data_size), "data")
        payload = await reader.readexactly(payload_size) if payload_size else None
    except asyncio.LimitOverrunError:
        raise ApiError(400, f"header: has more than {HEADER_BYTES} bytes", "event_too_large") from None
    except (asyncio.IncompleteReadError, OSError):
        return None
    return Event(kind, data, payload)


def _object(content: bytes, what: str) -> Json:
    try:
        found = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"{what}: is not JSON: {str(error)[:100]}", "invalid_json") from None
    if not isinstance(found, dict):
        raise ApiError(400, f"{what}: expected a JSON object", INVALID)
    return found


def _length(header: Json, name: str, max_bytes: int) -> int:
    """The number of bytes of a part of an event; 0 where it has none."""
    value = header.get(name)
    if value is None:
        return 0
    if type(value) is not int or value < 0:
        raise ApiError(400, f"{name}: expected an integer from 0 to {max_bytes}", INVALID)
    if value > max_bytes:
        raise ApiError(400, f"{name}: {value} bytes, expected at most {max_bytes}", "event_too_large")
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:  # Any: a class of the package `wyoming`
    return TypeAdapter(kind)


def parse(kind: type[Parsed], event: Event, **more: object) -> Parsed:
    """The data of an event as a class of the package `wyoming`. Raises ApiError that names the field."""
    try:
        found: Parsed = _adapter(cast(Any, kind)).validate_python(event.data | more)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"])) or "data"
        raise ApiError(400, f"{event.type}: {name}: {first['msg']}", INVALID, name) from None
    return found


def _event_bytes(event: Event) -> int:
    """About the bytes that an event takes."""
    return OBJECT_BYTES + len(repr(event.data)) + len(event.payload or b"")


def error_event(error: ApiError) -> Error:
    return Error(error.message, error.code or error.type)


class Connection:
    """`send` may be called by several tasks; events are sent whole and in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self._reader, self._writer = reader, writer
        self._sending = asyncio.Lock()
        self._receiving: asyncio.Task[Event | None] | None = None
        self._events_ahead: deque[Event] = deque()  # ahead of `receive`

    async def receive(self) -> Event | None:
        """See `read_event`."""
        return self._events_ahead.popleft() if self._events_ahead else await self._receive_next()

    async def _receive_next(self) -> Event | None:
        if self._receiving is None:
            self._receiving = asyncio.ensure_future(read_event(self._reader))
        await asyncio.wait((self._receiving,))  # a reading task that is cancelled would lose its bytes
        receiving, self._receiving = self._receiving, None
        return receiving.result()

    async def while_connected(self, waiting: Coroutine[object, object, None]) -> None:
        """Awaits `waiting`. Raises ClientLeft as soon as the client leaves.

        It reads events meanwhile, which `receive` returns later: about as many bytes as one may have.
        """
        await first_of(waiting, self._read_ahead())

    async def _read_ahead(self) -> None:
        """Raises ClientLeft. Does not return."""
        while sum(map(_event_bytes, self._events_ahead)) < PAYLOAD_BYTES:
            if (event := await self._receive_next()) is None:
                raise ClientLeft
            self._events_ahead.append(event)
        await asyncio.Future()

    async def send(self, event: Eventable) -> None:
        """Raises ClientLeft. `TimedStream` ends connections of clients that do not receive."""
        try:
            async with self._sending:
                await async_write_event(event.event(), self._writer)
        except OSError:
            raise ClientLeft from None

    async def close(self) -> None:
        """Waits until the client has received everything, for a short time.

        Unread input would reset the connection, and the client would lose the last events.
        """
        with suppress(TimeoutError, OSError, RuntimeError):
            async with asyncio.timeout(LINGER_S):
                self._writer.write_eof()
                while await self._reader.read(DROPPED_BYTES):
                    pass
                await self._writer.drain()
        self.abort()

    def abort(self) -> None:
        self._writer.transport.abort()
