"""Sound to be transcribed: files of any kind, block by block, and raw samples from a pipe that does not wait."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from typing import Any

import numpy as np

from bundle.errors import UsageError, VoxportError, first_line

QUALITY = "HQ"  # soxr's, with which the published front end resamples
TOLD_S = 60.0  # of sound between two lines of progress
BLOCK_S = 1.0  # of a file in memory at a time, and what is lost of a damaged one
KEPT_IN_MEMORY = 2**24  # bytes of a file from a pipe; more goes to the disk
UNKNOWN_LENGTH = 0x7FFF0000  # of a WAV that was written into a pipe
FULL_SCALE, CLIPPED_SHARE = 0.99, 0.001  # 8 bits end at 0.992
BLOCK_LIVE_S, REMEMBERED_S = (
    0.02,
    60.0,
)  # of live sound; a word is told a few seconds after it was heard, at most
HEADERS = (b"RIFF", b"fLaC", b"OggS", b"ID3", b"FORM")  # of files that are not raw samples
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
            raise UsageError(
                f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; expected a file of audio"
            )
        try:
            self._file = soundfile.SoundFile(
                _spooled(path) if str(path) == "-" or not path.is_file() else path
            )
        except TypeError:
            raise UsageError(
                f"{path}: raw samples say nothing of their rate; pipe them in: transcribe - --live --rate HZ < {path}"
            ) from None
        except (soundfile.LibsndfileError, OSError) as error:
            reason = getattr(error, "error_string", first_line(error)).rstrip(".")
            raise UsageError(
                f"{self._name}: no audio that can be read ({reason}); expected WAV, FLAC, MP3, OGG or what else libsndfile reads"
            ) from None
        self._frames = self._file.frames
        if not self._frames:
            raise UsageError(f"{self._name}: holds no sample")
        if path.is_file():
            _tell_if_cut(path)
        self.seconds = 0.0  # read so far

    def blocks(self) -> Iterator[np.ndarray]:
        """float32 [n] in [-1, 1] at the wanted rate. Raises UsageError where a sample is not finite."""
        import soundfile
        import soxr

        rate, clipped, loudest, damaged = self._file.samplerate, 0, 0.0, False
        told = TOLD_S
        resampler = (
            None if rate == self._rate else soxr.ResampleStream(rate, self._rate, 1, "float32", QUALITY)
        )
        read = 0
        while True:
            try:
                block = self._file.read(int(BLOCK_S * rate), dtype="float32", always_2d=True)
            except soundfile.LibsndfileError as error:
                log.warning(
                    "%s: damaged after %.1f s (%s): what lies behind is left out",
                    self._name,
                    read / rate,
                    first_line(error),
                )
                block, damaged = np.zeros((0, self._file.channels), np.float32), True
            if not np.isfinite(block).all():
                place = (read + int(np.argmin(np.isfinite(block).all(axis=1)))) / rate
                raise UsageError(
                    f"{self._name}: the sample at {place:.3f} s is not a finite number; mend the recording"
                )
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
        if not damaged:
            self._tell_if_short(read)
        self._tell(read, clipped, loudest)

    def _tell_if_short(self, read: int) -> None:
        frames, rate = self._frames, self._file.samplerate
        if read < frames < 2**62:  # what libsndfile says where nobody knows
            log.warning(
                "%s: ends after %.1f s, its header says %.1f s: it is cut off",
                self._name,
                read / rate,
                frames / rate,
            )

    def _tell(self, read: int, clipped: int, loudest: float) -> None:
        if loudest > 1:
            log.warning(
                "%s: samples up to %.3g, expected at most 1: scale the recording", self._name, loudest
            )
        elif clipped > CLIPPED_SHARE * read * self._file.channels:
            share = clipped / (read * self._file.channels)
            log.warning(
                "%s: %.1f %% of the samples are at full scale: it is clipped, and words may be lost",
                self._name,
                100 * share,
            )


def _tell_if_cut(path: Path) -> None:
    """libsndfile takes the samples of a WAV that are there for all: its header says how many there should be."""
    with path.open("rb") as file:
        head = file.read(12)
    length, size = int.from_bytes(head[4:8], "little") + 8, path.stat().st_size
    if head[:4] == b"RIFF" and size < length < UNKNOWN_LENGTH:
        log.warning("%s: has %d bytes, its header says %d: it is cut off", path, size, length)


def _spooled(path: Path) -> Any:
    """All of a pipe, or of stdin for `-`, as something that can be searched. Raises UsageError where stdin is closed."""
    log.info(
        "%s: read to its end first; for sound that goes on, transcribe - --live",
        "stdin" if str(path) == "-" else path,
    )
    file = tempfile.SpooledTemporaryFile(KEPT_IN_MEMORY)  # noqa: SIM115  open until it is read
    with raw_stdin() if str(path) == "-" else path.open("rb") as source:
        while piece := source.read(2**20):
            file.write(piece)
    file.seek(0)
    return file


class LiveSource:
    """Raw 16-bit little-endian samples from a pipe, read by a thread into a queue of some seconds, in blocks of 20 ms: a token is due a
    little after its 80 ms, and would wait for the next block of that length.

    Where the listener is slower than the source, either the source waits, as a pipe lets it, or the oldest sound is dropped; both
    are told, once a second at most.
    """

    def __init__(
        self, source: RawIOBase, rate: int, channels: int, to: int, room_s: float = 10.0, drops: bool = False
    ):
        """`source.read(n)` gives what is there, n bytes at most, and nothing at the end: an unbuffered file."""
        self._source, self._rate, self._to, self._drops = source, rate, to, drops
        self._frame = channels * SAMPLE
        self._block = max(1, round(rate * BLOCK_LIVE_S)) * self._frame
        self._room, self._pieces, self._changed = (
            max(1, round(room_s / BLOCK_LIVE_S)),
            deque[bytes](),
            threading.Condition(),
        )
        self._ended = threading.Event()
        self._error: OSError | None = None
        self._told = float("-inf")
        self.dropped_s = 0.0
        self._losses = deque([(0.0, 0.0)])  # after so many seconds that were given, so many had been dropped
        self._thread = threading.Thread(target=self._read, name="voxport-live", daemon=True)

    def end(self) -> None:
        """Nothing more is read; what was read is still given."""
        self._ended.set()

    def lost_before(self, given_s: float) -> float:
        """Seconds that were dropped before the sound that comes after so many seconds of what was given; remembered for a minute."""
        return next((lost for after, lost in reversed(self._losses) if after <= given_s), self._losses[0][1])

    def blocks(self) -> Iterator[np.ndarray]:
        """float32 [n] in [-1, 1] at the wanted rate, as they come. Raises VoxportError where the source cannot be read, and UsageError where
        it is not of raw samples."""
        import soxr

        resampler = (
            None
            if self._rate == self._to
            else soxr.ResampleStream(self._rate, self._to, 1, "float32", QUALITY)
        )
        self._thread.start()
        given = 0.0
        try:
            while (piece := self._next(given)) is not None:
                if not given and piece.startswith(HEADERS):
                    raise UsageError(
                        "stdin: an audio file; expected raw 16-bit samples. Leave --live out, or let ffmpeg write -f s16le"
                    )
                given += len(piece) / (self._frame * self._rate)
                samples = (
                    np.frombuffer(piece, "<i2")
                    .reshape(-1, self._frame // SAMPLE)
                    .astype(np.float32)
                    .mean(axis=1)
                    / 32768
                )
                yield samples if resampler is None else resampler.resample_chunk(samples)
            if resampler is not None:
                yield resampler.resample_chunk(np.zeros(0, np.float32), last=True)
        finally:
            self.end()
            if self.dropped_s:
                log.warning("%.1f s of sound were dropped in all", self.dropped_s)
        if not given and not self._error:
            log.warning("stdin: ended before any sound came")
        if self._error:
            raise VoxportError(f"stdin: cannot be read: {self._error.strerror or self._error}")

    def _remember_losses(self, given: float) -> None:
        if self.dropped_s > self._losses[-1][1]:
            self._losses.append((given, self.dropped_s))
        while len(self._losses) > 1 and self._losses[1][0] < given - REMEMBERED_S:
            self._losses.popleft()

    def _next(self, given: float) -> bytes | None:
        with self._changed:
            while not self._pieces:
                if self._ended.is_set():
                    return None
                self._changed.wait(WAKE_S)
            self._remember_losses(given)  # the oldest is dropped: it lay before this piece
            self._changed.notify()
            return self._pieces.popleft()

    def _read(self) -> None:
        rest = b""
        try:
            while not self._ended.is_set() and (piece := self._source.read(self._block - len(rest))) != b"":
                if piece is None:  # nothing yet, of a pipe that does not wait
                    self._ended.wait(BLOCK_LIVE_S)
                    continue
                rest += piece
                if len(rest) == self._block:
                    self._put(rest)
                    rest = b""
            whole = len(rest) // self._frame * self._frame
            if whole:
                self._put(rest[:whole])
            if odd := len(rest) - whole:
                log.warning(
                    "stdin: ended in the middle of a sample: %d byte%s left out", odd, "" if odd == 1 else "s"
                )
        except OSError as error:
            self._error = error
        finally:
            self.end()

    def _put(self, piece: bytes) -> None:
        with self._changed:
            while len(self._pieces) == self._room and not self._ended.is_set():
                if self._drops:
                    self.dropped_s += len(self._pieces.popleft()) / (self._frame * self._rate)
                    self._tell(f"{self.dropped_s:.1f} s dropped so far")
                else:
                    self._tell("the source waits")
                    self._changed.wait(WAKE_S)
            self._pieces.append(piece)
            self._changed.notify()

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
