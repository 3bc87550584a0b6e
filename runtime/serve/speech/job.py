"""`SpeechJob`: a text that one client asked for, between the engine thread and the client's handler."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

import numpy as np

from voxport.runtime.audio.files import pcm16
from voxport.runtime.batching import Status, Ticket
from voxport.runtime.serve.errors import ApiError
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
    """A text that was checked, the ticket of its first part, and about how many frames it will have.

    `threads` wait for the later parts of a text that still arrives. Its frames are those of the parts so far.
    """

    speech: Speech
    ticket: Ticket
    estimated_frames: float
    threads: Executor | None = None


class SpeechJob:
    """The engine thread calls `put` and `end`; a coroutine calls `read`. `cancel` may be called by both.

    `ticket` is that of the part of the text that is next or runs.
    """

    def __init__(self, prepared: PreparedSpeech, key: str, pool: BufferPool, wake: Callable[[], None]):
        """`wake` is called after `cancel`, and after `read` has made room."""
        self.speech, self.ticket, self.estimated_frames, self.threads = prepared
        self.next_ticket: Future[Ticket | None] | None = None  # part of a text that still arrives
        self.key = key
        self.submitted_at, self.started_at = time.monotonic(), 0.0
        self.is_cancelled = False
        self.frames = 0
        self.buffered = 0  # bytes
        self._pool, self._wake = pool, wake
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._blocks: deque[bytes] = deque()
        self._lock = Lock()
        self._is_done = False
        self._error: ApiError | None = None

    @property
    def frames_left(self) -> float:
        """About how many frames are to come."""
        return max(0.0, self.estimated_frames - self.frames)

    @property
    def status(self) -> Status:
        """Why the speech ended; see `runtime.text_to_speech.Speech`."""
        return self.speech.status

    def put(self, samples: np.ndarray) -> None:
        """Takes samples float32 [n]."""
        block = pcm16(samples)
        with self._lock:
            if self.is_cancelled or self._is_done or not block:
                return
            self._blocks.append(block)
            self.buffered += len(block)
            self._pool.add(len(block))
        self._notify()

    def end(self, error: ApiError | None = None) -> None:
        """Nothing follows. The first call counts."""
        with self._lock:
            if not self._is_done:
                self._is_done, self._error = True, error
        self._notify()

    async def read(self) -> bytes | None:
        """The next samples as 16-bit little-endian integers; None at the end. Raises ApiError."""
        while True:
            with self._lock:
                if self._blocks:
                    block = self._blocks.popleft()
                    self.buffered -= len(block)
                    self._pool.add(-len(block))
                    break
                if self._is_done:
                    if self._error:
                        raise self._error
                    return None
                self._changed.clear()
            await self._changed.wait()
        self._wake()
        return block

    def cancel(self) -> None:
        """Frees the slot or the place in the queue, and the buffer."""
        with self._lock:
            self.is_cancelled = True
            self._pool.add(-self.buffered)
            self.buffered = 0
            self._blocks.clear()
        self.ticket.cancel()
        self._wake()

    def _notify(self) -> None:
        with suppress(RuntimeError):  # the loop has ended, and its readers with it
            self._loop.call_soon_threadsafe(self._changed.set)
