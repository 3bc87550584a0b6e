"""`ArrivingText`: the pieces of a text that a client still sends."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue


class ArrivingText:
    """A coroutine adds the pieces; a thread iterates over them, and waits for the next one.

    A client that sends faster than its text is spoken is read as fast as that.
    """

    def __init__(self, max_waiting: int):
        """`max_waiting`: characters that are added while none is taken."""
        self._max_waiting, self._pieces = max_waiting, SimpleQueue[str | None]()
        self._loop, self._has_room = asyncio.get_running_loop(), asyncio.Event()
        self._waiting, self._is_finished = 0, False
        self.characters = 0  # so far

    def __iter__(self) -> Iterator[str]:
        while (piece := self._pieces.get()) is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._took, len(piece))
            yield piece

    def _took(self, count: int) -> None:
        self._waiting -= count
        self._has_room.set()

    async def add(self, piece: str) -> None:
        """Waits while too much of the text waits. A text that is finished takes no piece."""
        if piece and not self._is_finished:
            self.characters += len(piece)
            self._waiting += len(piece)
            self._pieces.put(piece)
        while self._waiting > self._max_waiting and not self._is_finished:
            self._has_room.clear()
            await self._has_room.wait()

    def finish(self) -> None:
        """No piece follows. Ends the iteration."""
        self._is_finished = True
        self._pieces.put(None)
        self._has_room.set()
