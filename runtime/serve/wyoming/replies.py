"""`Replies`: what the server sends for the requests of one connection."""

import asyncio
from abc import ABC, abstractmethod

from runtime.serve.errors import ApiError
from runtime.serve.metrics import Metrics

ROUTE = "wyoming"  # in the metrics


class Reply(ABC):
    """The events that answer one request."""

    @abstractmethod
    async def run(self) -> None:
        """Sends the events. Raises ApiError, UsageError or ClientLeft."""

    @abstractmethod
    def cancel(self) -> None:
        """Nobody waits for the reply. May be called before, while and after it runs."""


class Replies:
    """Runs replies one after another, in the order of their requests."""

    def __init__(self, most: int, metrics: Metrics):
        """`most`: requests that may wait for their reply, with the one that runs."""
        self._most, self._metrics = most, metrics
        self._pending: list[Reply] = []
        self._queue: asyncio.Queue[Reply] = asyncio.Queue()

    @property
    def are_done(self) -> bool:
        return not self._pending

    def add(self, reply: Reply) -> None:
        """Raises ApiError where too many wait."""
        if len(self._pending) >= self._most:
            reply.cancel()
            raise ApiError(429, f"the connection has {self._most} requests already", "rate_limit_exceeded")
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
