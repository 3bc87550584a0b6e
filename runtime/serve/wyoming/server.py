"""`WyomingServer`: listens for clients of the Wyoming protocol. They need no key."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.errors import ApiError, from_exception, overloaded
from voxport.runtime.serve.http.responses import ClientLeft
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.send_timer import SendTimer
from voxport.runtime.serve.wyoming.events import HEADER_BYTES, Connection, error_event
from voxport.runtime.serve.wyoming.replies import ROUTE
from voxport.runtime.serve.wyoming.session import ServerContext, Session

CLOSE_S = 5.0  # for sessions to end, when the server does
log = logging.getLogger(__name__)


class TimedStream(SendTimer, asyncio.StreamReaderProtocol):
    """A connection, of which `accept` gets the streams."""

    def __init__(
        self,
        accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[object, object, None]],
        limits: Limits,
    ):
        self.loop, self.limits = asyncio.get_running_loop(), limits
        super().__init__(asyncio.StreamReader(HEADER_BYTES, self.loop), accept, self.loop)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        super().connection_made(transport)


class WyomingServer:
    """An asynchronous context manager that serves while it is open. At most `sockets` clients at a time."""

    def __init__(self, models: Models, limits: Limits, metrics: Metrics, host: str, port: int):
        """A port of 0 is any free one."""
        self._models, self._limits, self._metrics = models, limits, metrics
        self._host, self._port = host, port
        self._connections: set[asyncio.Task[None]] = set()
        self._sessions = 0
        self._is_closing = False

    @property
    def port(self) -> int:
        """The port on which an open server listens."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aenter__(self) -> Self:
        """Raises UsageError where it cannot listen."""
        try:
            self._server = await asyncio.get_running_loop().create_server(
                lambda: TimedStream(self._accept, self._limits), self._host, self._port
            )
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"wyoming: {self._host}:{self._port}: {reason}", field="wyoming") from None
        self._threads = ThreadPoolExecutor(self._limits.sockets, "text of wyoming")
        self._context = ServerContext(
            self._models, self._limits, self._metrics, self._threads, lambda: self._is_closing
        )
        log.info("serving the Wyoming protocol at tcp://%s:%d", self._host, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._server.close()
        if self._connections:
            _done, late = await asyncio.wait(self._connections, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._threads.shutdown(wait=False)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) <= 2 * self._limits.sockets:  # some of them are closing
                await self._serve(connection)
                await connection.close()
        finally:
            connection.abort()
            self._connections.discard(task)

    async def _serve(self, connection: Connection) -> None:
        """Runs a session, and sends the error that ends it."""
        self._sessions += 1
        try:
            if self._sessions > self._limits.sockets:
                raise overloaded("the server has too many connections", 5)
            await Session(connection, self._context).run()
        except ClientLeft:
            log.debug("wyoming: the client left")
        except Exception as raised:  # whatever it is, the others go on
            await self._refuse(connection, from_exception(raised), raised)
        finally:
            self._sessions -= 1

    async def _refuse(self, connection: Connection, error: ApiError, raised: Exception) -> None:
        self._metrics.requests.labels(ROUTE, str(error.status)).inc()
        log.info("wyoming: %d %s", error.status, error.code)
        if error is not raised and error.status == 500:
            log.error("wyoming: a session failed", exc_info=raised)
        with suppress(ClientLeft):
            await connection.send(error_event(error))
