"""Events of the Wyoming protocol on a connection, and replies in the order of their requests."""

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError
from wyoming.error import Error
from wyoming.event import Event, Eventable, async_read_event, async_write_event
from wyoming.info import Attribution

from voxport.runtime.serve.errors import ApiError, SessionEnds, failure
from voxport.runtime.serve.fields import RequestFields, wrong_field
from voxport.runtime.serve.http.responses import ClientLeft, first_of
from voxport.runtime.serve.ignored import UnknownFields, at_most, log_ignored
from voxport.runtime.serve.limits import MIB
from voxport.runtime.serve.models import Models

HEADER_BYTES, PART_BYTES = 65_536, MIB  # limits of an event; its parts are its data and its payload
LINGER_S = 2.0  # for which input is read and dropped before a close
DROPPED_BYTES = 65_536  # at a time
INVALID = "invalid_event"
ROUTE = "wyoming"  # in the metrics
Parsed = TypeVar("Parsed")
log = logging.getLogger(__name__)


class EventReader(asyncio.StreamReader):
    """Bounds what `async_read_event` reads."""

    def __init__(self) -> None:
        super().__init__(HEADER_BYTES)

    async def readexactly(self, n: int) -> bytes:
        """Raises ApiError."""
        if n > PART_BYTES:
            raise ApiError(400, f"{n} bytes of an event, expected at most {PART_BYTES}", "event_too_large")
        return await super().readexactly(n)


async def read_event(reader: asyncio.StreamReader) -> Event | None:
    """The next event; None if the client has left. `reader` is an `EventReader`.

    Raises ApiError. The events that follow cannot be found then, so the connection has to end. This also
    stops web pages: the first line of an HTTP request is not JSON.
    """
    try:
        event = await async_read_event(reader)
    except (asyncio.IncompleteReadError, OSError):
        return None
    except (AttributeError, KeyError, RecursionError, TypeError):  # JSON that is no event
        event = None
    else:
        if event is None and reader.at_eof():
            return None
    if event is None or not isinstance(event.type, str) or not isinstance(event.data, dict):
        reason = f"expected a line of JSON with a type and data, of at most {HEADER_BYTES} bytes"
        raise ApiError(400, reason, INVALID)
    return event


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:  # Any: a class of the package `wyoming`
    return TypeAdapter(kind)


def parse(kind: type[Parsed], event: Event, unknown: UnknownFields, **more: object) -> Parsed:
    """The data of an event as a class of the package `wyoming`, or of `RequestFields`.

    `unknown` takes the names of fields that a class of the package does not have. Raises ApiError.
    """
    try:
        found: Parsed = _adapter(cast(Any, kind)).validate_python(event.data | more)
    except ValidationError as error:
        wrong = wrong_field(error, is_nested=True)
        raise ApiError(400, f"{event.type}: {wrong.message}", INVALID, wrong.param) from None
    if isinstance(found, RequestFields):
        return found.with_hints(unknown.is_strict)
    names = {field.name for field in fields(cast(Any, kind))}
    unknown.add(name for name in event.data if name not in names)
    return found


def artifact(name: str, description: str) -> dict[str, Any]:
    """The fields that programs, models and voices have in common. Any: values of several types."""
    common = {"name": name, "description": description, "version": None}
    return {**common, "attribution": Attribution("voxport", ""), "installed": True}


def error_event(error: ApiError) -> Error:
    return Error(error.message, error.code or error.type)


class Connection:
    """`send` may be called by several tasks; events are sent whole and in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_strict: bool):
        self.unknown = UnknownFields(is_strict)
        self._reader, self._writer = reader, writer
        self.client = str(writer.get_extra_info("peername")[0])  # its address
        self._sending = asyncio.Lock()

    async def receive(self) -> Event | None:
        """See `read_event`."""
        return await read_event(self._reader)

    async def send(self, event: Eventable, ignored: tuple[str, ...] = ()) -> None:
        """`ignored`: names of fields of the request that had no effect. Raises ClientLeft.

        The event also names the unknown fields of the events before.
        """
        sent = event.event()
        if names := at_most(ignored + self.unknown.take()):
            log_ignored(self.client, names)
            sent.data["ignored"] = list(names)
        try:
            async with self._sending:
                await async_write_event(sent, self._writer)
        except OSError:
            raise ClientLeft from None

    async def close(self) -> None:
        """Waits until the client has received everything, for a short time.

        Unread input would reset the connection, and the client would lose the last events.
        """
        try:
            with suppress(TimeoutError, OSError, RuntimeError):
                async with asyncio.timeout(LINGER_S):
                    self._writer.write_eof()
                    while await self._reader.read(DROPPED_BYTES):
                        pass
                    await self._writer.drain()
        finally:
            self._writer.transport.abort()


class Reply:
    """The events that answer one request. Without a method `run` of its own it is only an error."""

    def __init__(self, endings: tuple[Eventable, ...]):
        """`endings` follow an error, because clients wait for them."""
        self.endings = endings
        self._errors: asyncio.Queue[ApiError] = asyncio.Queue()

    async def run(self) -> None:
        """Sends the events. Raises ApiError, UsageError or ClientLeft."""
        await self.failed()

    def cancel(self) -> None:
        """Ends the reply, which is not sent any more. May be called before, while and after it runs."""

    def fail(self, error: ApiError) -> None:
        """The rest of the request is wrong."""
        self._errors.put_nowait(error)

    async def failed(self) -> None:
        """Raises the error of `fail`."""
        raise await self._errors.get()


class Replies:
    """Runs replies one after another, in the order of their requests. An error ends its reply only."""

    def __init__(self, connection: Connection, models: Models):
        self._connection = connection
        self._max_pending, self._metrics = models.limits.jobs_per_key, models.metrics
        self._pending: list[Reply] = []
        self._queue: asyncio.Queue[Reply] = asyncio.Queue()

    @property
    def are_done(self) -> bool:
        return not self._pending

    def add(self, reply: Reply) -> None:
        """Raises SessionEnds if too many wait."""
        if len(self._pending) >= self._max_pending:
            reply.cancel()
            message = f"the connection has {self._max_pending} requests already"
            raise SessionEnds(ApiError(429, message, "rate_limit_exceeded"))
        self._pending.append(reply)
        self._queue.put_nowait(reply)

    async def run(self) -> None:
        """Raises ClientLeft or SessionEnds."""
        while True:
            reply, status = await self._queue.get(), 200
            try:
                await first_of(reply.failed(), reply.run())
            except (ClientLeft, SessionEnds):
                raise
            except Exception as raised:
                status = await self._send_error(reply, failure(raised))
            self._pending.remove(reply)
            self._metrics.requests.labels(ROUTE, str(status)).inc()

    async def _send_error(self, reply: Reply, error: ApiError) -> int:
        reply.cancel()
        log.info("wyoming: %d %s", error.status, error.code)
        for event in (error_event(error), *reply.endings):
            await self._connection.send(event)
        return error.status

    def cancel(self) -> None:
        for reply in self._pending:
            reply.cancel()


class RequestEvents(ABC):
    """The events of one kind of requests on a connection. The rest of a wrong request is dropped."""

    first: str  # the event with which a request begins
    last: str  # the one with which it ends
    _reply: Reply | None = None  # to the request whose rest is to come
    _is_refused = False  # the request whose rest is to come

    def __init__(self, connection: Connection, replies: Replies, models: Models):
        self._connection, self._replies, self._models = connection, replies, models

    @property
    def is_open(self) -> bool:
        """Whether more of a request is to come."""
        return self._reply is not None

    async def handle(self, event: Event, workers: Any) -> None:
        """`workers` as in `take`. Raises ClientLeft or SessionEnds."""
        if self._is_refused and event.type != self.first:
            self._is_refused = event.type != self.last
            return
        self._is_refused = False
        try:
            await self.take(event, workers)
        except (ClientLeft, SessionEnds):
            raise
        except Exception as raised:
            if (reply := self._reply) is None:
                reply = Reply(self.endings(event))
                self._replies.add(reply)
            reply.fail(failure(raised))
            self._reply, self._is_refused = None, event.type not in (self.last, "synthesize")

    @abstractmethod
    async def take(self, event: Event, workers: Any) -> None:
        """Any: workers of the task. Raises ApiError, UsageError, ClientLeft or SessionEnds."""

    @abstractmethod
    def endings(self, event: Event) -> tuple[Eventable, ...]:
        """The events that follow the refusal of an event."""
