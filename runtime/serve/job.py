"""`Job`: the work of one client, between the engine thread of a bundle and the client's handler."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Generic, TypeVar

from voxport.runtime.serve.errors import ApiError

Result = TypeVar("Result")


class Job(Generic[Result]):
    """The engine thread calls `put` and `end`, a coroutine calls `read`. Both may call `cancel`."""

    def __init__(self, key: str, wake: Callable[[], None]):
        """`wake` wakes the engine thread. Called on the event loop."""
        self.key, self._wake = key, wake
        self.submitted_at, self.is_cancelled = time.monotonic(), False
        self._lock, self._is_done = Lock(), False
        self._loop = asyncio.get_running_loop()
        self._results: asyncio.Queue[Result | ApiError | None] = asyncio.Queue()

    def end(self, error: ApiError | None = None) -> None:
        """Nothing follows. The first call counts."""
        with self._lock:
            if not self._is_done:
                self._is_done = True
                self._send(error)

    async def read(self) -> Result | None:
        """The next result; None at the end. Raises ApiError."""
        result = await self._results.get()
        if isinstance(result, ApiError):
            raise result
        return result

    def _send(self, result: Result | ApiError | None) -> None:
        self._on_loop(self._results.put_nowait, result)

    def _on_loop(self, call: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop has ended, and its readers with it
            self._loop.call_soon_threadsafe(call, *arguments)
