"""Opens recordings: files, named pipes, standard input. Names what cannot be read."""

import logging
import os
import re
import shlex
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from io import RawIOBase
from pathlib import Path
from typing import IO

import numpy as np
import soundfile

from voxport.bundle.bounds import MAX_RATE, MIN_RATE
from voxport.bundle.errors import UsageError, first_line
from voxport.runtime.audio.containers import (
    MP3,
    MPEG_FRAME,
    OGG,
    SLACK_BYTES,
    container_of,
    head_of,
    is_chained,
    rate_of,
    wav_lengths,
)
from voxport.runtime.audio.files import SOUNDS
from voxport.runtime.audio.media import DamagedSound, MediaFile

MAX_MEMORY_BYTES = 2**24  # a larger file from a pipe is stored on disk
READ_BYTES = 2**20
MAX_INPUT_MB = 2048  # limit of a recording from a pipe: 3 hours of 16-bit stereo sound at 48 kHz
UNKNOWN_BYTES = 0x7FFF0000  # smallest length in the header of a WAV that was written to a pipe
UNKNOWN_FRAMES = 2**62  # smallest number of frames that libsndfile reports for an unknown length
MAX_TAG_BYTES = 2**12  # tags and padding behind the samples, without a warning
UNKNOWN_FORMAT = 1  # an error of libsndfile
SHORTER = r"^\s*(.*\S)\s*: (\d+) \(should be (\d+)\)"  # in its log: chunk, length in the header, length
OUTER = "RIFF", "FORM"  # chunks around the samples and their tags
EXPECTED = "expected audio, such as WAV, FLAC, MP3, M4A, Ogg or WebM"
INSTALL = "if it is whole, the package av reads it: run pip install 'voxport[media]'"
RIFF_SIZE, TO_THE_END = 4, b"\x08\0\0\0"  # with this size libsndfile reads data of the size 0 to the end
log = logging.getLogger(__name__)


def check_exists(path: Path) -> None:
    """Raises UsageError if a path names no file, pipe or device, and is not `-`."""
    if str(path) != "-" and (path.is_dir() or not path.exists()):
        reason = "is a folder" if path.is_dir() else "no such file"
        raise UsageError(f"{path}: {reason}; expected a file of audio")


def source_of(path: Path) -> IO[bytes]:
    """Opens a file. A pipe, a device, stdin (`-`), and a file whose header has no length are copied.

    Raises UsageError.
    """
    is_stdin = str(path) == "-"
    check_exists(path)
    try:
        is_file = path.is_file() and not is_stdin
        file = path.open("rb") if is_file else _copy_of_pipe(path)
        if _has_no_length(file):
            if is_file:
                file.close()
                file = _copy_of_pipe(path)
            file.seek(RIFF_SIZE)
            file.write(TO_THE_END)
        return file
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise UsageError(f"{'stdin' if is_stdin else path}: cannot be read: {reason}") from None


class _Source:
    """A file for libsndfile, which seeks to a place before the start of some damaged files."""

    def __init__(self, file: IO[bytes]):
        self._file, self.read, self.tell = file, file.read, file.tell

    def seek(self, offset: int, whence: int = 0) -> None:
        with suppress(OSError, ValueError):
            self._file.seek(offset, whence)


class SndFile:
    """What libsndfile reads. The members are as those of `MediaFile`."""

    def __init__(self, source: IO[bytes] | bytes):
        self._file = file = soundfile.SoundFile(source if isinstance(source, bytes) else _Source(source))
        self.samplerate, self.channels = file.samplerate, file.channels
        is_known = file.frames < UNKNOWN_FRAMES
        self.seconds = file.frames / file.samplerate if is_known and file.samplerate else None
        if not is_known:
            file.seekable = lambda: False  # soundfile seeks after each read, which fails without a length

    def read_block(self, frames: int) -> np.ndarray:
        try:
            block: np.ndarray = self._file.read(frames, dtype="float32", always_2d=True)
        except soundfile.LibsndfileError:
            raise DamagedSound("damaged") from None
        if not len(block) and self._is_short():
            raise DamagedSound("truncated")
        return block

    def close(self) -> None:
        self._file.close()

    def _is_short(self) -> bool:
        """Whether the header of a FLAC, WAV, AIFF, AU or the like names more samples than there are."""
        if self._file.format == "FLAC" and self.seconds is not None:
            return bool(self._file.tell() < self._file.frames)
        found = re.findall(SHORTER, self._file.extra_info, re.MULTILINE)
        lengths = [(int(header), int(length)) for chunk, header, length in found if chunk not in OUTER]
        return any(length + SLACK_BYTES < header < UNKNOWN_BYTES for header, length in lengths)


def open_audio(source: IO[bytes], name: str) -> SndFile | MediaFile:
    """Opens what `source_of` returned; `name` is for messages. Raises UsageError.

    libsndfile is the first choice, but not for MP3, because its decoder writes to standard error, and not for
    an Ogg of several streams.
    """
    head, has_av, fault = head_of(source), find_spec("av") is not None, None
    container = container_of(head)
    if container == OGG and is_chained(source):
        container = "Ogg of several streams"
    elif not (has_av and container == MP3 and re.match(MPEG_FRAME, head)):
        # libsndfile takes each file that is called .mp3 for an MP3
        is_mp3 = container == MP3 and not has_av and name.lower().endswith(".mp3")
        try:
            return SndFile(os.fsencode(name) if is_mp3 else source)
        except (soundfile.LibsndfileError, OSError, TypeError) as error:  # TypeError: raw samples
            if not container and getattr(error, "code", UNKNOWN_FORMAT) != UNKNOWN_FORMAT:
                fault = "damaged"
        if (rate := rate_of(head)) is not None and not MIN_RATE <= rate <= MAX_RATE:
            raise wrong_rate(name, rate)
    if has_av and head:
        try:
            return MediaFile(source)
        except DamagedSound as error:
            fault = str(error) if container else fault
    raise _not_read(name, container, fault or (None if head else "empty"))


def _not_read(name: str, container: str | None, fault: str | None) -> UsageError:
    """`fault`: what is wrong with the recording; None: no decoder is there."""
    suffix = Path(name).suffix.lower()
    if suffix in (".raw", ".pcm") and not container:
        return UsageError(
            f"{name}: raw samples do not say their rate; transcribe them live from stdin and give the rate"
        )
    convert = f"convert it: ffmpeg -i {shlex.quote(name)} OUT.wav"
    if not container:
        found, advice = fault or "in no known format", EXPECTED
    elif fault:
        found, advice = f"{container}, {fault}", "record or send it again"
    else:
        found, advice = container, f"{INSTALL}, or {convert}"
    if container and suffix in SOUNDS and suffix[1:] not in container.lower():
        found = found.replace(container, f"{container}, although it is called {suffix}")
    return UsageError(f"{name}: cannot be read as audio: it is {found}; {advice}")


def wrong_rate(name: str, rate: int) -> UsageError:
    return UsageError(f"{name}: sample rate {rate}, expected {MIN_RATE} to {MAX_RATE} Hz; repair its header")


def warn_of_wrong_length(path: Path) -> None:
    """Compares a WAV with the length in its header, because libsndfile does not read behind it."""
    with path.open("rb") as file:
        samples, behind = wav_lengths(file)
    if samples and behind > MAX_TAG_BYTES:
        message = "%s: its header names %d bytes of samples; %d bytes behind them are not read; repair it"
        log.warning(message, path, samples, behind)


def _copy_of_pipe(path: Path) -> IO[bytes]:
    """All bytes of a pipe, a file, or of stdin for `-`, as a seekable file that can be changed.

    Raises UsageError if stdin is closed, or beyond `MAX_INPUT_MB`.
    """
    is_stdin = str(path) == "-"
    if is_stdin or not path.is_file():
        message = "%s: reading to the end before transcription; raw samples and an endless stream need --live"
        log.info(message, "stdin" if is_stdin else path)
    file = tempfile.SpooledTemporaryFile(MAX_MEMORY_BYTES)  # noqa: SIM115  stays open until it is read
    with raw_stdin() if is_stdin else path.open("rb") as source:
        while piece := source.read(READ_BYTES):
            file.write(piece)
            if file.tell() > MAX_INPUT_MB * 10**6:
                file.close()
                raise UsageError(
                    f"{path}: holds more than {MAX_INPUT_MB} MB; store it in a file, or transcribe live"
                )
    file.seek(0)
    return file


def raw_stdin() -> RawIOBase:
    """Standard input without a buffer. Raises UsageError if it is closed.

    A thread that waits in a buffered read holds the buffer's lock, which blocks the exit of the program.
    """
    try:
        return open(os.dup(sys.stdin.fileno()), "rb", buffering=0)
    except (AttributeError, OSError, ValueError):
        raise UsageError("stdin: closed, expected audio in a pipe") from None


def _has_no_length(file: IO[bytes]) -> bool:
    size, behind = wav_lengths(file)
    return not size and behind > 0
