"""`Replies`: what the server sends for the requests of one connection."""

import asyncio
from abc import ABC, abstractmethod

from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.metrics import Metrics

ROUTE = "wyoming"  # in the metrics


class Reply(ABC):
    """The events that answer one request."""

    @abstractmethod
    async def run(self) -> None:
        """Sends the events. Raises ApiError, UsageError or ClientLeft."""

    @abstractmethod
    def cancel(self) -> None:
        """Ends the reply, which is not sent any more. May be called before, while and after it runs."""


class Replies:
    """Runs replies one after another, in the order of their requests."""

    def __init__(self, max_pending: int, metrics: Metrics):
        """`max_pending`: requests that may wait for their reply, with the one that runs."""
        self._max_pending, self._metrics = max_pending, metrics
        self._pending: list[Reply] = []
        self._queue: asyncio.Queue[Reply] = asyncio.Queue()

    @property
    def are_done(self) -> bool:
        return not self._pending

    def add(self, reply: Reply) -> None:
        """Raises ApiError if too many wait."""
        if len(self._pending) >= self._max_pending:
            reply.cancel()
            raise ApiError(
                429, f"the connection has {self._max_pending} requests already", "rate_limit_exceeded"
            )
        self._pending.append(reply)
        self._queue.put_nowait(reply)

    async def run(self) -> None:
        """Ends with the first error."""
        while True:
            reply = await self._queue.get()
            await reply.run()
            self._pending.remove(reply)
            self._metrics.requests.labels(ROUTE, "200").inc()

    def cancel(self) -> None:
        for reply in self._pending:
            reply.cancel()
