"""Runs the application with uvicorn until a signal ends it."""

import asyncio
import logging
import socket
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from runtime.serve.limits import MIB, Limits
from runtime.serve.models import Models
from runtime.serve.protocol import timed_protocol

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """Where the server listens. With a certificate and its key it speaks TLS."""

    host: str
    port: int
    certificate: Path | None = None
    private_key: Path | None = None


class Server(uvicorn.Server):
    """The first signal refuses new requests and waits for those that run; a second one ends at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        models: Models,
        drain_s: float,
        beside: AbstractAsyncContextManager[object] | None = None,
    ):
        """`beside` is open while the server runs, on the same event loop."""
        super().__init__(config)
        self._models, self._drain_s, self._beside = models, drain_s, beside or nullcontext()
        self._draining: asyncio.Future[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        async with self._beside:
            await super().serve(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._draining is not None:
            super().handle_exit(sig, frame)
            return
        log.info("shutting down; work in progress has %g s", self._drain_s)
        self._draining = asyncio.ensure_future(self._drain())

    async def _drain(self) -> None:
        await asyncio.to_thread(self._models.drain, self._drain_s)
        self.should_exit = True


def serve(
    app: ASGIApp,
    models: Models,
    limits: Limits,
    address: Address,
    beside: AbstractAsyncContextManager[object] | None = None,
) -> None:
    """Returns when the server has ended. `beside` is open while it runs, such as another server."""
    config = configuration(app, limits, address)
    Server(config, models, limits.drain_s, beside).run()


def configuration(app: ASGIApp, limits: Limits, address: Address) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=address.host,
        port=address.port,
        ssl_certfile=address.certificate,
        ssl_keyfile=str(address.private_key) if address.private_key else None,
        http=timed_protocol(limits.header_s),
        log_config=None,
        access_log=False,
        server_header=False,
        ws="websockets-sansio",
        ws_max_size=int(limits.message_mib * MIB),
        timeout_graceful_shutdown=5,
    )
