"""Live audio: raw samples from a pipe, read by a thread."""

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from io import RawIOBase

import numpy as np

from bundle.errors import UsageError, VoxportError
from runtime.audio.resampling import Resampler

BLOCK_S = 0.02  # seconds of a block; a token of 80 ms would wait for the rest of a longer one
HISTORY_S = 60.0  # seconds for which drops are remembered; a word comes a few seconds after its sound
POLL_S = 0.2  # seconds after which a waiting thread checks whether the other one has ended
SAMPLE_BYTES = 2
FILE_HEADERS = (
    b"RIFF",
    b"fLaC",
    b"OggS",
    b"ID3",
    b"FORM",
)  # first bytes of audio files, which are not raw samples
log = logging.getLogger(__name__)


class LiveSource:
    """Raw 16-bit little-endian samples from a pipe.

    A thread reads blocks of 20 ms into a queue of `queue_s` seconds. When the queue is full, the thread
    either stops reading, so that the pipe waits, or drops the oldest block. Both log a warning, at most once
    a second.
    """

    queue_s = 10.0

    def __init__(self, source: RawIOBase, rate: int, channels: int, new_rate: int, drops: bool = False):
        """`source` is unbuffered: `read(n)` returns the available bytes, at most n, and b"" at the end."""
        self._source, self._rate, self._new_rate, self._drops = source, rate, new_rate, drops
        self._frame_bytes = channels * SAMPLE_BYTES
        self._block_bytes = max(1, round(rate * BLOCK_S)) * self._frame_bytes
        self._queue: deque[bytes] = deque()
        self._queue_blocks = max(1, round(self.queue_s / BLOCK_S))
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._error: OSError | None = None
        self._warned = float("-inf")  # time of the last warning
        self.dropped_s = 0.0
        self._drop_history = deque([(0.0, 0.0)])  # seconds returned so far, seconds dropped before them
        self._thread = threading.Thread(target=self._read, name="voxport-live", daemon=True)

    def end(self) -> None:
        """Stops reading. `blocks` still returns what is in the queue."""
        self._ended.set()

    def lost_before(self, returned_s: float) -> float:
        """Seconds that were dropped before the sound at `returned_s` of the returned blocks.

        Remembered for a minute.
        """
        history = self._drop_history
        return next((lost for start, lost in reversed(history) if start <= returned_s), history[0][1])

    def blocks(self) -> Iterator[np.ndarray]:
        """Mono blocks float32 [n] in [-1, 1] at `new_rate`, as they arrive.

        Raises VoxportError if the source cannot be read, UsageError if it is an audio file.
        """
        resampler, returned_s = Resampler(self._rate, self._new_rate), 0.0
        self._thread.start()
        try:
            while (block := self._next_block(returned_s)) is not None:
                if not returned_s and block.startswith(FILE_HEADERS):
                    raise UsageError(
                        "stdin: an audio file, expected raw 16-bit samples; "
                        "transcribe it as a recording, or convert it with ffmpeg -f s16le"
                    )
                returned_s += self._seconds(block)
                yield resampler.feed(self._mono(block))
            if len(rest := resampler.finish()):
                yield rest
        finally:
            self.end()
            if self.dropped_s:
                log.warning("%.1f s of sound were dropped in total", self.dropped_s)
        if self._error:
            raise VoxportError(f"stdin: cannot be read: {self._error.strerror or self._error}")
        if not returned_s:
            log.warning("stdin: ended without any sound")

    def _seconds(self, block: bytes) -> float:
        return len(block) / (self._frame_bytes * self._rate)

    def _mono(self, block: bytes) -> np.ndarray:
        frames = np.frombuffer(block, "<i2").reshape(-1, self._frame_bytes // SAMPLE_BYTES)
        mono: np.ndarray = frames.astype(np.float32).mean(axis=1) / 32768
        return mono

    def _next_block(self, returned_s: float) -> bytes | None:
        """Waits for a block. None after the last one."""
        with self._changed:
            while not self._queue:
                if self._ended.is_set():
                    return None
                self._changed.wait(POLL_S)
            self._remember_drops(returned_s)  # only older blocks were dropped, so they lie before this one
            self._changed.notify()
            return self._queue.popleft()

    def _remember_drops(self, returned_s: float) -> None:
        history = self._drop_history
        if self.dropped_s > history[-1][1]:
            history.append((returned_s, self.dropped_s))
        while len(history) > 1 and history[1][0] < returned_s - HISTORY_S:
            history.popleft()

    def _read(self) -> None:
        """Reads the source until its end: runs in a thread."""
        rest = b""
        try:
            while (
                not self._ended.is_set()
                and (piece := self._source.read(self._block_bytes - len(rest))) != b""
            ):
                if piece is None:  # a non-blocking pipe without data
                    self._ended.wait(BLOCK_S)
                    continue
                rest += piece
                if len(rest) == self._block_bytes:
                    self._put(rest)
                    rest = b""
            whole = len(rest) // self._frame_bytes * self._frame_bytes
            if whole:
                self._put(rest[:whole])
            if len(rest) > whole:
                log.warning("stdin: ended within a sample; bytes left out: %d", len(rest) - whole)
        except OSError as error:
            self._error = error
        finally:
            self.end()

    def _put(self, block: bytes) -> None:
        """Appends a block to the queue.

        A full queue drops its oldest block, or blocks until there is space.
        """
        with self._changed:
            while len(self._queue) == self._queue_blocks and not self._ended.is_set():
                if self._drops:
                    self.dropped_s += self._seconds(self._queue.popleft())
                    self._warn(f"{self.dropped_s:.1f} s dropped so far")
                else:
                    self._warn("the source waits")
                    self._changed.wait(POLL_S)
            self._queue.append(block)
            self._changed.notify()

    def _warn(self, consequence: str) -> None:
        if time.monotonic() - self._warned >= 1:
            self._warned = time.monotonic()
            log.warning("sound arrives faster than it is transcribed: %s", consequence)


def raw_stdin() -> RawIOBase:
    """Standard input without a buffer. Raises UsageError if it is closed.

    A thread that waits in a buffered read holds the buffer's lock, which blocks the exit of the program.
    """
    try:
        return open(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    except (AttributeError, OSError, ValueError):
        raise UsageError("stdin: closed, expected audio in a pipe") from None
