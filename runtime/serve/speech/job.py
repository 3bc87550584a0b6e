"""`SpeechJob`: a text that one client asked for. `ArrivingText`: one that the client still sends."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock
from typing import NamedTuple

import numpy as np

from voxport.runtime.audio.files import pcm16
from voxport.runtime.batching import Status, Ticket
from voxport.runtime.serve.worker import Job
from voxport.runtime.text_to_speech import Speech


class BufferPool:
    """Counts the bytes of unsent samples of all jobs. Thread-safe."""

    def __init__(self, size: int):
        self._size, self._used, self._lock = size, 0, Lock()

    @property
    def used(self) -> int:
        return self._used

    def add(self, count: int) -> None:
        with self._lock:
            self._used += count

    def has_room(self, count: int) -> bool:
        return self._used + count <= self._size


class PreparedSpeech(NamedTuple):
    """A text that was checked, and the ticket of its first part; None if the text has no word.

    `threads` wait for the later parts of a text that still arrives.
    """

    speech: Speech
    ticket: Ticket | None
    threads: Executor | None = None


class SpeechJob(Job[bytes | str]):
    """A text that one client asked for. Results are 16-bit little-endian samples.

    A text among the results is a part that begins; an empty one ends the part. `ticket` belongs to the part
    of the text that is next or runs.
    """

    def __init__(self, prepared: PreparedSpeech, pool: BufferPool, wake: Callable[[], None]):
        """`wake` is called after `cancel`, and after `read` has made room."""
        super().__init__(wake)
        self.speech, self.ticket, self.threads = prepared
        self.next_ticket: Future[Ticket | None] | None = None  # part of a text that still arrives
        self.frames = self.buffered = 0  # `buffered` in bytes
        self._pool = pool

    @property
    def is_wordless(self) -> bool:
        """Whether silence is in place of the text."""
        return self.ticket is None

    @property
    def status(self) -> Status:
        """Why the speech ended; see `runtime.text_to_speech.Speech`."""
        return self.speech.status

    def put(self, samples: np.ndarray) -> None:
        """Takes samples float32 [n]."""
        block = pcm16(samples)
        with self._lock:
            if block and not self.is_cancelled and not self._is_done:
                self._count(len(block))
                self._send(block)

    def mark(self, part: str) -> None:
        """A part of the text begins, or ends if `part` is empty."""
        with self._lock:
            if not self._is_done:
                self._send(part)

    async def read(self) -> bytes | None:
        """The next samples; None at the end. Raises ApiError."""
        while isinstance(result := await self.read_marked(), str):
            pass
        return result

    async def read_marked(self) -> bytes | str | None:
        """The next result, with the marks of parts; None at the end. Raises ApiError."""
        result = await super().read()
        if isinstance(result, bytes):
            with self._lock:
                if not self.is_cancelled:
                    self._count(-len(result))
            self._wake()
        return result

    def cancel(self) -> None:
        """Frees the slot or the place in the queue, and the buffer."""
        with self._lock:
            self.is_cancelled = True
            self._count(-self.buffered)
        if self.ticket:
            self.ticket.cancel()
        self._wake()

    def _count(self, size: int) -> None:
        self.buffered += size
        self._pool.add(size)


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
