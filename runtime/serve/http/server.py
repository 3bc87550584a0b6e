"""Runs the application with uvicorn until a signal ends it."""

import asyncio
import gc
import logging
import signal
import socket
import ssl
import time
from contextlib import AbstractAsyncContextManager, nullcontext
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from voxport.runtime.serve.address import Listener
from voxport.runtime.serve.limits import MIB, Limits
from voxport.runtime.serve.models import Models

NO_HANDSHAKE = "ASGI callable returned without completing handshake."
EXTRA_CONNECTIONS = 64  # without a request; uvicorn refuses further ones
FINAL_SEND_S = 1.0  # for sockets to send their last error, when the time for running work is over
Background = AbstractAsyncContextManager[object]
LISTS = (b"connection", b"upgrade")
WEBSOCKET = b"websocket"
Fields = list[tuple[bytes, bytes]]
HEADER_BYTES = 65_536  # of a request
log = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """The first signal refuses new requests and waits for running ones. A second one ends it immediately."""

    def __init__(self, config: uvicorn.Config, models: Models, background: Background | None = None):
        """`background`, such as a Wyoming server, is open while the server runs, on its event loop."""
        super().__init__(config)
        self._models, self._background = models, background or nullcontext()
        self._draining: asyncio.Future[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with self._background:
            await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is not None:
            log.warning("a second signal ends the server; work in progress is lost")
            self._ending = asyncio.ensure_future(self._end(sig))
            return
        log.info("shutting down; work in progress has %g s", self._models.limits.drain_s)
        self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        seconds = self._models.limits.drain_s
        end = time.monotonic() + seconds
        await asyncio.to_thread(self._models.drain, seconds)
        end = max(end, time.monotonic() + FINAL_SEND_S)
        while self.server_state.tasks and time.monotonic() < end:  # what is transcribed and spoken is sent
            await asyncio.sleep(0.05)
        self.should_exit = True

    async def _end(self, sig: int) -> None:
        """Engines may run for seconds, and threads cannot be stopped: the signal ends the process."""
        if tasks := [task for task in self.server_state.tasks if task.cancel()]:
            await asyncio.wait(tasks, timeout=FINAL_SEND_S)  # they delete their files
        signal.signal(sig, signal.SIG_DFL)
        signal.raise_signal(sig)


def serve(app: ASGIApp, models: Models, listener: Listener, background: Background | None = None) -> None:
    """Returns when the server has ended. `background` is open while it runs; see `Server`."""
    config = configuration(app, models.limits, listener.tls)
    leave_out_loaded_objects()
    Server(config, models, background).run(listener.sockets)


def leave_out_loaded_objects() -> None:
    """Leaves what is loaded so far out of garbage collections.

    A collection of the objects of all packages, about 100,000, would stop the event loop for 0.1 s.
    """
    gc.collect()
    gc.freeze()


def _is_error(record: logging.LogRecord) -> bool:
    """uvicorn also logs sockets refused with a response, which `AccessMiddleware` has logged, and tasks
    that are cancelled when the server ends.
    """
    raised = record.exc_info[1] if record.exc_info else None
    return record.msg != NO_HANDSHAKE and not isinstance(raised, asyncio.CancelledError)


def configuration(app: ASGIApp, limits: Limits, tls: ssl.SSLContext | None = None) -> uvicorn.Config:
    """uvicorn logs errors only: its other lines have the query of a socket's URL, which may hold a secret."""
    logging.getLogger("uvicorn.error").addFilter(_is_error)
    return uvicorn.Config(
        app,
        http=HttpProtocol,
        ws="websockets-sansio",
        ssl_context_factory=(lambda *_: tls) if tls else None,
        log_config=None,
        log_level=logging.ERROR,
        access_log=False,
        server_header=False,
        limit_concurrency=limits.connections + EXTRA_CONNECTIONS,
        # An answer to a ping waits behind audio that is not read yet. A client that is gone is noticed
        # without it: it sends nothing.
        ws_ping_timeout=limits.session_s,
        ws_max_size=int(limits.message_mib * MIB),
        timeout_graceful_shutdown=5,
    )


class HttpProtocol(H11Protocol):
    """Reads requests that HTTP allows and uvicorn does not understand."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.conn = RequestReader(h11.SERVER, HEADER_BYTES)


class RequestReader(h11.Connection):
    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Requests have one line of each list, an upgrade to WebSockets alone, and a path as target."""
        event = super().next_event()
        if not isinstance(event, h11.Request):
            return event
        headers, target = list(event.headers), event.target
        for name in LISTS:
            headers = _join(headers, name)
        scheme, found, rest = target.partition(b"://")
        if found and scheme.isalpha():  # a client that takes this server for a proxy
            authority, slash, path = rest.partition(b"/")
            target = slash + path or b"/"
            headers = [(b"host", authority), *(each for each in headers if each[0] != b"host")]
        return h11.Request(
            method=event.method, headers=headers, target=target, http_version=event.http_version
        )


def _join(headers: Fields, name: bytes) -> Fields:
    """The lines of a list become one line."""
    found = (token.strip() for key, value in headers if key == name for token in value.split(b","))
    tokens = list(filter(None, found))
    if not tokens:
        return headers
    if name == b"upgrade" and WEBSOCKET in (token.lower() for token in tokens):
        tokens = [WEBSOCKET]
    return [*(each for each in headers if each[0] != name), (name, b", ".join(tokens))]
