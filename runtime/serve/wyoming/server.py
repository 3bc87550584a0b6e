"""`WyomingServer`: listens for clients of the Wyoming protocol. They need no key."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self

from voxport.runtime.serve.address import bind
from voxport.runtime.serve.errors import ApiError, from_exception, overloaded
from voxport.runtime.serve.http.responses import ClientLeft
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.wyoming.events import Connection, EventReader, error_event
from voxport.runtime.serve.wyoming.replies import ROUTE
from voxport.runtime.serve.wyoming.session import ServerContext, Session

CLOSE_S = 5.0  # for sessions to end, when the server does
log = logging.getLogger(__name__)


class WyomingServer:
    """An asynchronous context manager that serves while it is open. At most `sockets` clients at a time."""

    def __init__(self, models: Models, limits: Limits, metrics: Metrics, host: str, port: int):
        """A port of 0 is any free one."""
        self._limits, self._metrics, self._host, self.port = limits, metrics, host, port
        self._threads = ThreadPoolExecutor(limits.sockets, "text of wyoming")
        self._context = ServerContext(models, limits, metrics, self._threads, lambda: self._is_closing)
        self._connections: set[asyncio.Task[None]] = set()
        self._is_closing = False

    async def __aenter__(self) -> Self:
        """Raises UsageError if it cannot listen."""
        loop, listener = asyncio.get_running_loop(), bind(self._host, self.port, "wyoming")
        self._servers = [
            await loop.create_server(
                lambda: asyncio.StreamReaderProtocol(EventReader(), self._accept), sock=each
            )
            for each in listener.sockets
        ]
        self.port = listener.port
        log.info("serving the Wyoming protocol at tcp://%s:%d", self._host, self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        for server in self._servers:
            server.close()
        if self._connections:
            _done, late = await asyncio.wait(self._connections, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self._threads.shutdown(wait=False)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Runs a session, and sends the error that ends it."""
        connection, task = Connection(reader, writer), asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if len(self._connections) > self._limits.sockets:
                raise overloaded("the server has too many connections", 5)
            await Session(connection, self._context).run()
        except ClientLeft:
            log.debug("wyoming: the client left")
        except Exception as raised:  # whatever it is, the others go on
            await self._refuse(connection, from_exception(raised), raised)
        finally:
            await connection.close()
            self._connections.discard(task)

    async def _refuse(self, connection: Connection, error: ApiError, raised: Exception) -> None:
        self._metrics.requests.labels(ROUTE, str(error.status)).inc()
        log.info("wyoming: %d %s", error.status, error.code)
        if error is not raised and error.status == 500:
            log.error("wyoming: a session failed", exc_info=raised)
        with suppress(ClientLeft):
            await connection.send(error_event(error))
