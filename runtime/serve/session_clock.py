"""`SessionClock`: how long the session of a socket may last, and how long its client may be silent."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Protocol, TypeVar

from voxport.runtime.serve.errors import ApiError, SessionEnds, draining
from voxport.runtime.serve.limits import Limits

POLL_S = 0.5  # between checks
Received = TypeVar("Received")


class SessionState(Protocol):
    @property
    def is_busy(self) -> bool:
        """Whether the client waits for text or speech."""

    @property
    def is_incomplete(self) -> bool:
        """Whether the rest of what the client sends is to come."""


class SessionClock:
    """Starts with the session."""

    def __init__(self, limits: Limits, is_draining: Callable[[], bool]):
        self._limits, self._is_draining = limits, is_draining
        self._started, self._is_first = time.monotonic(), True

    async def receive(self, message: Coroutine[object, object, Received], state: SessionState) -> Received:
        """The next message of the client. Raises SessionEnds.

        A server that shuts down ends sessions that are not busy. A client that waits is not silent.
        """
        since, receiving = time.monotonic(), asyncio.ensure_future(message)
        try:
            self._check(since, state.is_busy)  # for a client that sends without a pause, too
            while not (await asyncio.wait((receiving,), timeout=POLL_S))[0]:
                if state.is_busy and not state.is_incomplete:
                    since = time.monotonic()
                self._check(since, state.is_busy)
            self._is_first = False
            return receiving.result()
        finally:
            receiving.cancel()

    def _check(self, since: float, is_busy: bool) -> None:
        now, limits = time.monotonic(), self._limits
        silence = limits.body_s if self._is_first else limits.silent_socket_s
        if self._is_draining() and not is_busy:
            raise SessionEnds(draining())
        if now - since > silence:
            message = f"no message in {silence:g} s; the session ends"
            raise SessionEnds(ApiError(400, message, "session_idle"))
        if now - self._started > limits.session_s:
            message = f"the session has lasted {limits.session_s:g} s; start a new one"
            raise SessionEnds(ApiError(400, message, "session_expired"))
