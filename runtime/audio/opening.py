"""Opens audio for libsndfile: files, named pipes, and standard input."""

import logging
import os
import shlex
import sys
import tempfile
from io import RawIOBase
from pathlib import Path
from typing import IO

import soundfile

from voxport.bundle.bounds import MAX_RATE, MIN_RATE
from voxport.bundle.errors import UsageError, first_line
from voxport.runtime.audio import containers

MAX_MEMORY_BYTES = 2**24  # a larger file from a pipe is stored on disk
READ_BYTES = 2**20
UNKNOWN_BYTES = 0x7FFF0000  # smallest length in the header of a WAV that was written to a pipe
UNKNOWN_FRAMES = 2**62  # smallest number of frames that libsndfile reports for an unknown length
EXPECTED = "expected WAV, FLAC, MP3, OGG or another format of libsndfile"
MAX_TAG_BYTES = 2**12  # tags and padding behind the samples, without a warning
UNKNOWN_FORMAT = 1  # an error of libsndfile
log = logging.getLogger(__name__)


def check_exists(path: Path) -> None:
    """Raises UsageError if a path names no file, pipe or device, and is not `-`."""
    if str(path) != "-" and (path.is_dir() or not path.exists()):
        reason = "is a folder" if path.is_dir() else "no such file"
        raise UsageError(f"{path}: {reason}; expected a file of audio")


def source_of(path: Path, max_mb: int) -> IO[bytes]:
    """A file, or a seekable copy of a pipe, a device, stdin (`-`), or a file whose header has no length.

    Raises UsageError.
    """
    is_stdin = str(path) == "-"
    check_exists(path)
    try:
        is_file = path.is_file() and not is_stdin
        file = path.open("rb") if is_file else _copy_of_pipe(path, max_mb)
        if repair := containers.length_repair(file):
            if is_file:
                file.close()
                file = _copy_of_pipe(path, max_mb)
            file.seek(repair[0])
            file.write(repair[1])
        return file
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise UsageError(f"{'stdin' if is_stdin else path}: cannot be read: {reason}") from None


def open_audio(source: IO[bytes], name: str) -> soundfile.SoundFile:
    """Opens what `source_of` returned; `name` is for messages. Raises UsageError.

    libsndfile takes each file that is called .mp3 for an MP3. It gets a name only if the file has frames of
    an MP3.
    """
    source.seek(0)
    head = source.read(containers.HEAD_BYTES)
    source.seek(0)
    is_mp3 = (
        name.lower().endswith(".mp3")
        and containers.kind_of(head) is None
        and containers.has_mpeg_frames(head)
    )
    try:
        file = soundfile.SoundFile(os.fsencode(name) if is_mp3 else source)
    except (soundfile.LibsndfileError, OSError, TypeError) as error:  # TypeError: raw samples
        raise _not_audio(name, head, error) from None
    if file.frames >= UNKNOWN_FRAMES:
        file.seekable = lambda: False  # soundfile seeks after each read, which fails without a length
    return file


def _not_audio(name: str, head: bytes, error: Exception) -> UsageError:
    if name.lower().endswith((".raw", ".pcm")):
        return UsageError(
            f"{name}: raw samples do not say their rate; transcribe them live from stdin and give the rate"
        )
    if (rate := containers.rate_of(head)) is not None and not MIN_RATE <= rate <= MAX_RATE:
        return wrong_rate(name, rate)
    is_known = getattr(error, "code", UNKNOWN_FORMAT) != UNKNOWN_FORMAT
    found, advice = "damaged" if is_known else "in no known format" if head else "empty", EXPECTED
    if (kind := containers.kind_of(head)) is not None:
        found, advice = kind, f"convert it: ffmpeg -i {shlex.quote(name)} OUT.wav"
    return UsageError(f"{name}: cannot be read as audio: it is {found}; {advice}")


def wrong_rate(name: str, rate: int) -> UsageError:
    return UsageError(f"{name}: sample rate {rate}, expected {MIN_RATE} to {MAX_RATE} Hz; repair its header")


def warn_of_wrong_length(path: Path) -> None:
    """Compares a WAV with the length in its header, because libsndfile accepts a shorter or longer file."""
    with path.open("rb") as file:
        head = file.read(12)
        samples, behind = containers.wav_lengths(file)
    length, size = int.from_bytes(head[4:8], "little") + 8, path.stat().st_size
    if head[:4] == b"RIFF" and size < length < UNKNOWN_BYTES:
        log.warning("%s: truncated: it has %d bytes of the %d in its header", path, size, length)
    elif samples and behind > MAX_TAG_BYTES:
        message = "%s: its header names %d bytes of samples; %d bytes behind them are not read; repair it"
        log.warning(message, path, samples, behind)


def _copy_of_pipe(path: Path, max_mb: int) -> IO[bytes]:
    """All bytes of a pipe, a file, or of stdin for `-`, as a seekable file that can be changed.

    Raises UsageError if stdin is closed, or beyond `max_mb` MB.
    """
    is_stdin = str(path) == "-"
    if is_stdin or not path.is_file():
        message = "%s: reading to the end before transcription; an endless stream needs live transcription"
        log.info(message, "stdin" if is_stdin else path)
    file = tempfile.SpooledTemporaryFile(MAX_MEMORY_BYTES)  # noqa: SIM115  stays open until it is read
    with raw_stdin() if is_stdin else path.open("rb") as source:
        while piece := source.read(READ_BYTES):
            file.write(piece)
            if file.tell() > max_mb * 10**6:
                file.close()
                raise UsageError(
                    f"{path}: holds more than {max_mb} MB; store it in a file, or transcribe live"
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
