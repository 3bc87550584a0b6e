"""`timed_protocol`: HTTP connections whose headers must arrive in time. uvicorn has no such limit."""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol


def timed_protocol(seconds: float) -> type[H11Protocol]:
    """The class of connections that are closed where headers take longer than `seconds`."""

    class TimedProtocol(H11Protocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._start()

        def data_received(self, data: bytes) -> None:
            if self._timer is None and not self._is_busy:
                self._start()  # the first bytes of another request of the connection
            super().data_received(data)
            if self._is_busy or self.transport.get_protocol() is not self:
                self._stop()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        @property
        def _is_busy(self) -> bool:
            """Whether a request is being answered."""
            return self.cycle is not None and not self.cycle.response_complete

        def _start(self) -> None:
            self._timer = self.loop.call_later(seconds, self._expire)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _expire(self) -> None:
            self._timer = None
            if not self._is_busy and self.transport.get_protocol() is self:
                self.transport.close()

    return TimedProtocol
