"""Recordings to be transcribed: audio files of any format, read block by block."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from bundle.errors import UsageError, first_line
from runtime.audio.live import raw_stdin
from runtime.audio.resampling import Resampler

if TYPE_CHECKING:
    from soundfile import SoundFile

BLOCK_S = 1.0  # seconds of a file in memory at a time, and of audio lost where a file is damaged
MAX_MEMORY_BYTES = 2**24  # of a file from a pipe; a larger one is stored on disk
READ_BYTES = 2**20
UNKNOWN_BYTES = 0x7FFF0000  # smallest length in the header of a WAV that was written to a pipe
UNKNOWN_FRAMES = 2**62  # smallest number of frames that libsndfile reports for an unknown length
FULL_SCALE = 0.99  # absolute value from which a sample counts as clipped; 8-bit audio ends at 0.992
MAX_CLIPPED = 0.001  # fraction of clipped samples without a warning
log = logging.getLogger(__name__)


@dataclass
class _Levels:
    """Counts over the samples read so far.

    `frames` counts samples per channel, `clipped` samples of all channels.
    """

    frames: int = 0
    clipped: int = 0
    peak: float = 0.0

    def add(self, block: np.ndarray) -> None:
        """block float32 [n, channels]."""
        self.frames += len(block)
        self.clipped += int((np.abs(block) >= FULL_SCALE).sum())
        self.peak = max(self.peak, float(np.abs(block).max(initial=0)))


class Recording:
    """An audio file that libsndfile reads, as mono blocks of a given sample rate.

    It may have any sample rate, sample width and number of channels. The path `-` is a whole file on stdin.
    Memory does not grow with the length. Truncated, damaged, clipped and overscaled recordings log a warning.
    """

    def __init__(self, path: Path, rate: int):
        """Raises UsageError if there is no such file or it is not audio."""
        self._name, self._rate = "stdin" if str(path) == "-" else str(path), rate
        self._file = _open(path, self._name)
        if not self._file.frames:
            raise UsageError(f"{self._name}: has no samples; expected a file of audio")
        if path.is_file():
            _warn_if_shorter_than_header(path)
        self.seconds = 0.0  # read so far

    def blocks(self) -> Iterator[np.ndarray]:
        """Blocks float32 [n] in [-1, 1] at `rate`. Raises UsageError on a sample that is not finite."""
        resampler, levels = Resampler(self._file.samplerate, self._rate), _Levels()
        while (block := self._read_block(levels)) is not None and len(block):
            self._check_finite(block, levels.frames)
            levels.add(block)
            self.seconds = levels.frames / self._file.samplerate
            yield resampler.feed(block.mean(axis=1))
        yield resampler.finish()
        expected = self._file.frames
        self._file.close()
        if block is not None and levels.frames < expected < UNKNOWN_FRAMES:
            rate = self._file.samplerate
            log.warning(
                "%s: truncated: it has %.1f s, its header says %.1f s",
                self._name,
                levels.frames / rate,
                expected / rate,
            )
        self._warn_about_levels(levels)

    def _read_block(self, levels: _Levels) -> np.ndarray | None:
        """The next block float32 [n, channels], [0, channels] at the end.

        None, with a warning, if the file is damaged.
        """
        import soundfile

        rate = self._file.samplerate
        try:
            block: np.ndarray = self._file.read(int(BLOCK_S * rate), dtype="float32", always_2d=True)
        except soundfile.LibsndfileError as error:
            at, reason = levels.frames / rate, first_line(error)
            log.warning("%s: damaged after %.1f s (%s); the rest is not transcribed", self._name, at, reason)
            return None
        return block

    def _check_finite(self, block: np.ndarray, start: int) -> None:
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            at = (start + int(np.argmin(finite))) / self._file.samplerate
            raise UsageError(
                f"{self._name}: the sample at {at:.3f} s is not a finite number; repair the recording"
            )

    def _warn_about_levels(self, levels: _Levels) -> None:
        fraction = levels.clipped / max(1, levels.frames * self._file.channels)
        if levels.peak > 1:
            log.warning(
                "%s: samples up to %.3g, expected at most 1; scale the recording", self._name, levels.peak
            )
        elif fraction > MAX_CLIPPED:
            log.warning(
                "%s: clipped: %.1f %% of the samples are at full scale; words may be missing",
                self._name,
                100 * fraction,
            )


def _open(path: Path, name: str) -> SoundFile:
    """Opens a file, a named pipe, or stdin for `-`. Raises UsageError."""
    import soundfile

    is_stdin = str(path) == "-"
    if not is_stdin and (path.is_dir() or not path.exists()):
        reason = "is a folder" if path.is_dir() else "no such file"
        raise UsageError(f"{path}: {reason}; expected a file of audio")
    try:
        return soundfile.SoundFile(path if path.is_file() and not is_stdin else _copy_of_pipe(path))
    except TypeError:
        raise UsageError(
            f"{path}: raw samples do not say their rate; transcribe them live from stdin and give the rate"
        ) from None
    except (soundfile.LibsndfileError, OSError) as error:
        reason = str(getattr(error, "error_string", first_line(error))).rstrip(".")
        raise UsageError(
            f"{name}: cannot be read as audio ({reason}); "
            "expected WAV, FLAC, MP3, OGG or another format of libsndfile"
        ) from None


def _warn_if_shorter_than_header(path: Path) -> None:
    """Compares a WAV with the length in its header, because libsndfile accepts a shorter file."""
    with path.open("rb") as file:
        head = file.read(12)
    length, size = int.from_bytes(head[4:8], "little") + 8, path.stat().st_size
    if head[:4] == b"RIFF" and size < length < UNKNOWN_BYTES:
        log.warning("%s: truncated: it has %d bytes, its header says %d", path, size, length)


def _copy_of_pipe(path: Path) -> IO[bytes]:
    """All bytes of a pipe, or of stdin for `-`, as a seekable file. Raises UsageError if stdin is closed."""
    is_stdin = str(path) == "-"
    log.info(
        "%s: reading to the end before transcription; use live transcription for an endless stream",
        "stdin" if is_stdin else path,
    )
    file = tempfile.SpooledTemporaryFile(MAX_MEMORY_BYTES)  # noqa: SIM115  stays open until it is read
    with raw_stdin() if is_stdin else path.open("rb") as source:
        while piece := source.read(READ_BYTES):
            file.write(piece)
    file.seek(0)
    return file
