"""Sound to be transcribed: files of any kind, block by block, and raw samples from a pipe that does not wait."""

from __future__ import annotations

import logging
import os
import queue
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np

from runtime.errors import RuntimeFault, UsageError, first_line

QUALITY = "HQ"  # soxr's, with which the published front end resamples
TOLD_S = 60.0  # of sound between two lines of progress
BLOCK_S = 1.0  # of a file in memory at a time, and what is lost of a damaged one
KEPT_IN_MEMORY = 2**24  # bytes of a file from a pipe; more goes to the disk
FULL_SCALE, CLIPPED_SHARE = 0.99, 0.001  # 8 bits end at 0.992
WAKE_S = 0.2  # how long a thread waits before it looks whether the other is gone
SAMPLE = 2  # bytes of a 16-bit sample
log = logging.getLogger(__name__)


class Recording:
    """A file of any rate, width and number of channels that libsndfile reads, as mono blocks of another rate.

    Memory does not grow with its length. `-` is a whole file on stdin. What is odd about it is told in the log.
    """

    def __init__(self, path: Path, rate: int):
        """Raises UsageError where there is no such file, or none that is audio."""
        import soundfile

        self._name, self._rate = "stdin" if str(path) == "-" else str(path), rate
        if str(path) != "-" and (path.is_dir() or not path.exists()):
            raise UsageError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; expected a file of audio")
        try:
            self._file = soundfile.SoundFile(path if path.is_file() else _spooled(path))
        except TypeError:
            raise UsageError(f"{path}: raw samples say nothing of their rate; pipe them in: transcribe - --live --rate HZ < {path}") from None
        except (soundfile.LibsndfileError, OSError) as error:
            reason = getattr(error, "error_string", first_line(error)).rstrip(".")
            raise UsageError(f"{self._name}: no audio that can be read ({reason}); expected WAV, FLAC, MP3, OGG or what else libsndfile reads") from None
        self._frames = self._file.frames
        if not self._frames:
            raise UsageError(f"{self._name}: holds no sample")
        self.seconds = 0.0  # read so far

    def blocks(self) -> Iterator[np.ndarray]:
        """float32 [n] in [-1, 1] at the wanted rate. Raises UsageError where a sample is not finite."""
        import soundfile
        import soxr

        rate, clipped, loudest = self._file.samplerate, 0, 0.0
        told = TOLD_S
        resampler = None if rate == self._rate else soxr.ResampleStream(rate, self._rate, 1, "float32", QUALITY)
        read = 0
        while True:
            try:
                block = self._file.read(int(BLOCK_S * rate), dtype="float32", always_2d=True)
            except soundfile.LibsndfileError as error:
                log.warning("%s: damaged after %.1f s (%s): what lies behind is left out", self._name, read / rate, first_line(error))
                block = np.zeros((0, self._file.channels), np.float32)
            if not np.isfinite(block).all():
                place = (read + int(np.argmin(np.isfinite(block).all(axis=1)))) / rate
                raise UsageError(f"{self._name}: the sample at {place:.3f} s is not a finite number; mend the recording")
            read += len(block)
            clipped += int((np.abs(block) >= FULL_SCALE).sum())
            loudest = max(loudest, float(np.abs(block).max(initial=0)))
            self.seconds = read / rate
            if self.seconds >= told:
                log.info("%.0f s of sound so far", self.seconds)
                told += TOLD_S
            mono = block.mean(axis=1)
            yield mono if resampler is None else resampler.resample_chunk(mono, last=not len(block))
            if not len(block):
                break
        self._file.close()
        self._tell(read, clipped, loudest)

    def _tell(self, read: int, clipped: int, loudest: float) -> None:
        frames, rate = self._frames, self._file.samplerate
        if read < frames < 2**62:  # what libsndfile says where nobody knows
            log.warning("%s: ends after %.1f s, its header says %.1f s: it is cut off", self._name, read / rate, frames / rate)
        if loudest > 1:
            log.warning("%s: samples up to %.3g, expected at most 1: scale the recording", self._name, loudest)
        elif clipped > CLIPPED_SHARE * read * self._file.channels:
            share = clipped / (read * self._file.channels)
            log.warning("%s: %.1f %% of the samples are at full scale: it is clipped, and words may be lost", self._name, 100 * share)


def _spooled(path: Path) -> Any:
    """All of a pipe, or of stdin for `-`, as something that can be searched. Raises UsageError where stdin is closed."""
    file = tempfile.SpooledTemporaryFile(KEPT_IN_MEMORY)  # noqa: SIM115  open until it is read
    with raw_stdin() if str(path) == "-" else path.open("rb") as source:
        while piece := source.read(2**20):
            file.write(piece)
    file.seek(0)
    return file


class LiveSource:
    """Raw 16-bit little-endian samples from a pipe, read by a thread into a queue of some seconds, in blocks of 80 ms.

    Where the listener is slower than the source, either the source waits, as a pipe lets it, or the oldest sound is dropped; both
    are told, once a second at most.
    """

    def __init__(self, source: RawIOBase, rate: int, channels: int, to: int, room_s: float = 10.0, drops: bool = False):
        """`source.read(n)` gives what is there, n bytes at most, and nothing at the end: an unbuffered file."""
        self._source, self._rate, self._to, self._drops = source, rate, to, drops
        self._frame = channels * SAMPLE
        self._block = max(1, rate * 8 // 100) * self._frame
        self._queue: queue.Queue[bytes | None] = queue.Queue(max(1, round(room_s / 0.08)))
        self._ended = threading.Event()
        self._error: OSError | None = None
        self._told = float("-inf")
        self.dropped_s = 0.0
        self._thread = threading.Thread(target=self._read, name="voxport-live", daemon=True)

    def end(self) -> None:
        """Nothing more is read; what was read is still given."""
        self._ended.set()

    def blocks(self) -> Iterator[np.ndarray]:
        """float32 [n] in [-1, 1] at the wanted rate, as they come. Raises RuntimeFault where the source cannot be read."""
        import soxr

        resampler = None if self._rate == self._to else soxr.ResampleStream(self._rate, self._to, 1, "float32", QUALITY)
        self._thread.start()
        try:
            while (piece := self._next()) is not None:
                samples = np.frombuffer(piece, "<i2").reshape(-1, self._frame // SAMPLE).astype(np.float32).mean(axis=1) / 32768
                yield samples if resampler is None else resampler.resample_chunk(samples)
            if resampler is not None:
                yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)
        finally:
            self.end()
        if self._error:
            raise RuntimeFault(f"stdin: cannot be read: {self._error.strerror or self._error}")

    def _next(self) -> bytes | None:
        while True:
            try:
                return self._queue.get(timeout=WAKE_S)
            except queue.Empty:
                if self._ended.is_set():
                    return None

    def _read(self) -> None:
        rest = b""
        try:
            while not self._ended.is_set() and (piece := self._source.read(self._block - len(rest))):
                rest += piece
                if len(rest) == self._block:
                    self._put(rest)
                    rest = b""
            whole = len(rest) // self._frame * self._frame
            if whole:
                self._put(rest[:whole])
            if odd := len(rest) - whole:
                log.warning("stdin: ended in the middle of a sample: %d byte%s left out", odd, "" if odd == 1 else "s")
        except OSError as error:
            self._error = error
        finally:
            self._wait_for_room(None)

    def _put(self, piece: bytes) -> None:
        while True:
            try:
                self._queue.put_nowait(piece)
                return
            except queue.Full:
                pass
            if not self._drops:
                self._tell("the source waits")
                self._wait_for_room(piece)
                return
            try:
                lost = self._queue.get_nowait()
            except queue.Empty:  # the listener was faster
                continue
            self.dropped_s += len(lost or b"") / (self._frame * self._rate)
            self._tell(f"{self.dropped_s:.1f} s dropped so far")

    def _wait_for_room(self, piece: bytes | None) -> None:
        while not self._ended.is_set():
            try:
                self._queue.put(piece, timeout=WAKE_S)
                return
            except queue.Full:
                continue

    def _tell(self, what: str) -> None:
        if time.monotonic() - self._told >= 1:
            self._told = time.monotonic()
            log.warning("the sound comes faster than it is transcribed: %s", what)


def raw_stdin() -> RawIOBase:
    """Standard input without a buffer, whose lock a thread that waits for sound would hold when the program ends. Raises UsageError."""
    try:
        return open(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    except (AttributeError, OSError, ValueError):
        raise UsageError("stdin: closed; expected raw samples in a pipe") from None
