"""`WyomingServer`: listens for clients of the Wyoming protocol. They need no key."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from ipaddress import ip_address
from typing import Self

from wyoming.event import Event
from wyoming.info import Describe, Info, SelectProgram
from wyoming.ping import Ping, Pong
from zeroconf import Error
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from voxport.bundle.errors import UsageError
from voxport.runtime.serve.address import Network, bind, parse_networks, url_host
from voxport.runtime.serve.errors import ApiError, SessionEnds, failure, overloaded
from voxport.runtime.serve.http.responses import ClientLeft, first_of
from voxport.runtime.serve.models import Models
from voxport.runtime.serve.session_clock import SessionClock
from voxport.runtime.serve.speech.worker import SpeechWorker
from voxport.runtime.serve.transcription.worker import TranscriptionWorker
from voxport.runtime.serve.wyoming.events import ROUTE, Connection, EventReader, Replies, error_event, parse
from voxport.runtime.serve.wyoming.speech import SpeechEvents, tts_program
from voxport.runtime.serve.wyoming.transcription import AudioEvents, asr_program

LOOPBACK_NETWORKS = ("127.0.0.0/8", "::1")
SERVICE = "_wyoming._tcp.local."
GROUP = "224.0.0.251"  # of multicast DNS
CLOSE_S = 5.0  # for sessions to end, when the server does
log = logging.getLogger(__name__)


class WyomingServer:
    """An asynchronous context manager that serves while it is open. At most `sockets` clients at a time."""

    def __init__(
        self,
        models: Models,
        host: str,
        port: int,
        networks: Sequence[Network] = (),
        announces: bool = False,
    ):
        """A port of 0 is any free one. Clients of this machine and of `networks` may connect.

        A server that `announces` itself is found in the local network.
        """
        self.models, self._host, self.port, self._announces = models, host, port, announces
        self._networks = (*networks, *parse_networks(LOOPBACK_NETWORKS))
        # they wait for texts that arrive in pieces
        self.threads = ThreadPoolExecutor(models.limits.sockets, "text of wyoming")
        self._connections: set[asyncio.Task[None]] = set()
        self.is_closing = False
        self._announcement = AsyncExitStack()

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
        if self._announces:
            address = listener.sockets[0].getsockname()[0]
            await self._announcement.enter_async_context(announced(address, self.port))
        log.info("serving the Wyoming protocol at tcp://%s:%d", url_host(self._host), self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_closing = True
        await self._announcement.aclose()
        for server in self._servers:
            server.close()
        if self._connections:
            _done, late = await asyncio.wait(self._connections, timeout=CLOSE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self.threads.shutdown(wait=False)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Runs a session, and sends the error that ends it."""
        connection, task = Connection(reader, writer, self.models.is_strict), asyncio.current_task()
        assert task is not None
        if not any(ip_address(connection.client) in network for network in self._networks):
            log.warning("wyoming: %s is in no network of --wyoming-allow", connection.client)
            writer.close()
            return
        self._connections.add(task)
        try:
            if len(self._connections) > self.models.limits.sockets:
                raise overloaded("the server has too many connections")
            await WyomingSession(connection, self).run()
        except ClientLeft:
            log.debug("wyoming: the client left")
        except Exception as raised:  # whatever it is, the others go on
            error = failure(raised)
            self.models.metrics.requests.labels(ROUTE, str(error.status)).inc()
            log.info("wyoming: %d %s", error.status, error.code)
            with suppress(ClientLeft):
                await connection.send(error_event(error))
        finally:
            await connection.close()
            self._connections.discard(task)


class WyomingSession:
    """One connection: reads events and sends replies at the same time.

    A wrong request is answered with an error and with the events that clients wait for. What is no event
    ends the connection.
    """

    def __init__(self, connection: Connection, server: WyomingServer):
        self._connection, self._server, self._models = connection, server, server.models
        self._replies = Replies(connection, self._models)
        self._speech = SpeechEvents(connection, self._replies, self._models, server.threads)
        self._audio = AudioEvents(connection, self._replies, self._models)
        self._speech_model: str | None = None  # the selected programs
        self._transcription_model: str | None = None

    async def run(self) -> None:
        """Returns when the client has left. Raises ApiError, SessionEnds, UsageError or ClientLeft."""
        try:
            await first_of(self._read(), self._replies.run())
        finally:
            self._replies.cancel()

    async def _read(self) -> None:
        clock = SessionClock(self._models.limits, lambda: self._models.is_draining or self._server.is_closing)
        while (event := await clock.receive(self._connection.receive(), self)) is not None:
            try:
                await self._handle(event)
            except (ClientLeft, SessionEnds):
                raise
            except Exception as raised:  # no request
                await self._connection.send(error_event(failure(raised)))

    @property
    def is_busy(self) -> bool:
        return not (self._replies.are_done or self._server.is_closing)

    @property
    def is_incomplete(self) -> bool:
        return self._speech.is_open or self._audio.is_open

    async def _handle(self, event: Event) -> None:
        match event.type:
            case "describe":
                parse(Describe, event, self._connection.unknown)
                await self._connection.send(describe(self._models))
            case "ping":
                await self._connection.send(Pong(parse(Ping, event, self._connection.unknown).text))
            case "select-program":
                self._select(parse(SelectProgram, event, self._connection.unknown).name)
            case "synthesize" | "synthesize-start" | "synthesize-chunk" | "synthesize-stop":
                await self._speech.handle(event, self._speech_workers())
            case "transcribe" | "audio-start" | "audio-chunk" | "audio-stop":
                await self._audio.handle(event, self._transcription_worker)
            case other:
                raise ApiError(400, f"type {other[:50]!r}: is no event of this server", "unknown_event")

    def _select(self, name: str) -> None:
        if name in self._models.speech_workers:
            self._speech_model = name
        else:
            self._transcription_model = self._models.transcription_worker(name).name

    def _speech_workers(self) -> list[SpeechWorker]:
        """The workers of all speech models, or only of the selected one."""
        found = self._models.speech_workers
        return [found[self._speech_model]] if self._speech_model else list(found.values())

    def _transcription_worker(self, name: str | None) -> TranscriptionWorker:
        """The worker of the model `name`, else of the selected one, else the first. Raises ApiError."""
        first = next(iter(self._models.transcription_workers), None)
        return self._models.transcription_worker(name or self._transcription_model or first)


def describe(models: Models) -> Info:
    """Clients take the first program of each kind."""
    return Info(
        tts=[tts_program(worker) for worker in models.speech_workers.values()],
        asr=[asr_program(worker) for worker in models.transcription_workers.values()],
    )


@asynccontextmanager
async def announced(address: str, port: int) -> AsyncIterator[None]:
    """Announces a server by multicast DNS, as Home Assistant looks for it. Raises UsageError."""
    name = f"voxport on {socket.gethostname().partition('.')[0]}.{SERVICE}"
    try:
        own = _main_address() if ip_address(address).is_unspecified else address
        async with AsyncZeroconf(interfaces=[own]) as network:
            service = AsyncServiceInfo(SERVICE, name, port, parsed_addresses=[own])
            await (await network.async_register_service(service, allow_name_change=True))
            yield
    except (OSError, Error) as error:
        raise UsageError(f"wyoming_announce: {error}", field="wyoming_announce") from None


def _main_address() -> str:
    """The address from which this machine sends to the local network. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((GROUP, 5353))
        return str(probe.getsockname()[0])
