"""`protocols`: connections whose clients send and receive in time. uvicorn has no such limits."""

import asyncio
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.datastructures import Headers
from websockets.frames import Frame
from websockets.http11 import Response

from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.http.access import CONNECTIONS, REQUEST_ID, error_response, new_request_id
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.send_timer import SendTimer

EXTRA_CONNECTIONS = 64  # beyond the limit, which are refused with an answer; further ones are closed


class TimedHttp(SendTimer, H11Protocol):
    """Closes a connection whose headers do not arrive in time.

    A connection counts from the moment it is accepted. With TLS, the time of its handshake is limited by the
    server (`Server.startup`).
    """

    handshakes: dict["TimedHttp", float]  # accepted, but not connected: when, on the clock of the loop
    _timer: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **options: Any):  # Any: those of the base class
        """Raises ConnectionRefusedError beyond the limit; asyncio then closes the connection."""
        super().__init__(*arguments, **options)
        now = self.loop.time()
        for other, accepted in list(self.handshakes.items()):
            if now - accepted > self.limits.header_s:  # its handshake has failed
                del self.handshakes[other]
        if len(self.connections) + len(self.handshakes) >= self.limits.connections + EXTRA_CONNECTIONS:
            raise ConnectionRefusedError
        self.handshakes[self] = now

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.handshakes.pop(self, None)
        self.app_state = {**self.app_state, CONNECTIONS: self.connections}
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._timer is None and not self._is_busy:
            self._start_timer()  # the first bytes of another request of the connection
        super().data_received(data)
        if self._is_busy or self.transport.get_protocol() is not self:
            self._stop_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answers data that are not an HTTP request with the envelope of all errors."""
        headers, body = error_response(ApiError(400, msg, "invalid_http"))
        headers += [(b"connection", b"close"), (REQUEST_ID, new_request_id().encode())]
        response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        for event in (response, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def _is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.limits.header_s, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        if not self._is_busy and self.transport.get_protocol() is self:
            self.transport.close()


def refuse_handshake(status: HTTPStatus | int, text: str) -> Response:
    """Answers a request that is not a handshake with the envelope of all errors."""
    found, body = error_response(ApiError(status, text.strip(), "invalid_handshake"))
    headers = [*found, (REQUEST_ID, new_request_id().encode()), (b"connection", b"close")]
    fields = Headers((name.decode(), value.decode()) for name, value in headers)
    return Response(int(status), HTTPStatus(status).phrase, fields, body)


class TimedSocket(SendTimer, WebSocketsSansIOProtocol):
    """A socket after its handshake.

    Its pings keep proxies from closing it. A client that is gone is noticed without them: it sends nothing,
    or receives nothing.
    """

    def __init__(self, *arguments: Any, **options: Any):  # Any: those of the base class
        super().__init__(*arguments, **options)
        self.conn.reject = refuse_handshake  # type: ignore[method-assign]

    def handle_pong(self, event: Frame) -> None:
        """Takes no time: uvicorn sends the next ping sooner by the time that an answer took, up to all of it.

        An answer may be late, because it waits behind audio that is not read yet.
        """


def protocols(limits: Limits) -> dict[str, Any]:  # Any: passed on as keyword arguments
    """The classes of connections, as arguments of `uvicorn.Config`."""
    return {
        "http": type("TimedHttp", (TimedHttp,), {"limits": limits, "handshakes": {}}),
        "ws": type("TimedSocket", (TimedSocket,), {"limits": limits}),
    }
