"""`SendTimer`: ends connections whose clients receive nothing. uvicorn and asyncio have no such limit."""

import asyncio
import math
from typing import Any

from voxport.runtime.serve.limits import Limits


class SendTimer(asyncio.Protocol):
    """Aborts a connection whose client receives nothing for `send_s`; a slow client may go on.

    A transport that closes would wait for it.
    """

    limits: Limits
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _sending: asyncio.TimerHandle | None = None
    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._tls is not None:  # would end a connection 30 s after it closes, whatever is received
            self._tls._ssl_shutdown_timeout = math.inf
        self._closing = self.loop.call_later(self.limits.send_s, self._check_closing, None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_send_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_send_timer()
        if self._closing is not None:
            self._closing.cancel()
        super().connection_lost(exc)

    def _stop_send_timer(self) -> None:
        if self._sending is not None:
            self._sending.cancel()

    @property
    def _is_gone(self) -> bool:
        """Whether the transport has lost its TLS layer, at the end of the connection."""
        return getattr(self.transport, "_ssl_protocol", self) is None

    @property
    def _tls(self) -> Any:  # asyncio has no public name for it
        """asyncio's TLS layer, or None."""
        return getattr(self.transport, "_ssl_protocol", None)

    def _unsent(self) -> int:
        """Bytes that the client has not received.

        With TLS, the transport counts only those that its layer has not encrypted and passed on. The
        transport below has the others.
        """
        below = getattr(self._tls, "_transport", None)
        return self.transport.get_write_buffer_size() + (below.get_write_buffer_size() if below else 0)

    def _watch_sending(self) -> None:
        self._sending = self.loop.call_later(self.limits.send_s, self._check_sending, self._unsent())

    def _check_sending(self, before: int) -> None:
        """`before`: the unsent bytes at the last check."""
        if self._is_gone:
            return
        if self._unsent() < before:
            self._watch_sending()
        else:
            self.transport.abort()

    def _check_closing(self, before: int | None) -> None:
        """`before`: the unsent bytes at the last check; None where the transport was not closing.

        The timer of an HTTP connection also ends here after a socket has taken over.
        """
        if self._is_gone:
            return
        unsent = self._unsent() if self.transport.is_closing() else None
        if before is not None and unsent is not None and unsent >= before:
            self.transport.abort()
        elif self.transport.get_protocol() is self:  # and no socket has taken over
            self._closing = self.loop.call_later(self.limits.send_s, self._check_closing, unsent)
