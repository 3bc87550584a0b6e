"""Opens audio for libsndfile: files, named pipes, and standard input."""

import logging
import os
import sys
import tempfile
from io import RawIOBase
from pathlib import Path
from typing import IO

import soundfile

from bundle.errors import UsageError, first_line

MAX_MEMORY_BYTES = 2**24  # of a file from a pipe; a larger one is stored on disk
READ_BYTES = 2**20
UNKNOWN_BYTES = 0x7FFF0000  # smallest length in the header of a WAV that was written to a pipe
UNKNOWN_FRAMES = 2**62  # smallest number of frames that libsndfile reports for an unknown length
log = logging.getLogger(__name__)


def check_exists(path: Path) -> None:
    """Raises UsageError where a path is neither that of a file, a pipe or a device, nor `-`."""
    if str(path) != "-" and (path.is_dir() or not path.exists()):
        reason = "is a folder" if path.is_dir() else "no such file"
        raise UsageError(f"{path}: {reason}; expected a file of audio")


def source_of(path: Path, max_mb: int) -> Path | IO[bytes]:
    """The path of a file, or a seekable copy of a pipe, a device or stdin (`-`). Raises UsageError."""
    is_stdin = str(path) == "-"
    check_exists(path)
    try:
        return path if path.is_file() and not is_stdin else _copy_of_pipe(path, max_mb)
    except OSError as error:
        raise _not_audio("stdin" if is_stdin else str(path), error) from None


def open_audio(source: Path | IO[bytes], name: str) -> soundfile.SoundFile:
    """Opens what `source_of` returned; `name` is for messages. Raises UsageError."""
    try:
        file = soundfile.SoundFile(source)
        return file if file.frames < UNKNOWN_FRAMES else _reopened(file, source)
    except TypeError:
        raise UsageError(
            f"{name}: raw samples do not say their rate; transcribe them live from stdin and give the rate"
        ) from None
    except (soundfile.LibsndfileError, OSError) as error:
        raise _not_audio(name, error) from None


def _reopened(file: soundfile.SoundFile, source: Path | IO[bytes]) -> soundfile.SoundFile:
    file.close()
    if not isinstance(source, Path):
        source.seek(0)
    file = soundfile.SoundFile(source)
    file.seekable = lambda: False  # soundfile seeks after each read, which fails without a length
    return file


def rewind(file: soundfile.SoundFile, source: Path | IO[bytes], name: str) -> soundfile.SoundFile:
    """The file at its first frame. libsndfile cannot seek without a length, so such a file is opened again.

    Raises UsageError where a damaged file cannot be rewound.
    """
    try:
        if file.frames >= UNKNOWN_FRAMES:
            return _reopened(file, source)
        file.seek(0)
        return file
    except soundfile.LibsndfileError as error:
        raise UsageError(
            f"{name}: damaged, it cannot be read from the start ({first_line(error)}); repair it"
        ) from None


def _not_audio(name: str, error: Exception) -> UsageError:
    reason = str(getattr(error, "error_string", first_line(error))).rstrip(".")
    return UsageError(
        f"{name}: cannot be read as audio ({reason}); "
        "expected WAV, FLAC, MP3, OGG or another format of libsndfile"
    )


def warn_if_shorter_than_header(path: Path) -> None:
    """Compares a WAV with the length in its header, because libsndfile accepts a shorter file."""
    with path.open("rb") as file:
        head = file.read(12)
    length, size = int.from_bytes(head[4:8], "little") + 8, path.stat().st_size
    if head[:4] == b"RIFF" and size < length < UNKNOWN_BYTES:
        log.warning("%s: truncated: it has %d bytes of the %d in its header", path, size, length)


def _copy_of_pipe(path: Path, max_mb: int) -> IO[bytes]:
    """All bytes of a pipe, or of stdin for `-`, as a seekable file.

    Raises UsageError if stdin is closed, or beyond `max_mb` MB.
    """
    is_stdin = str(path) == "-"
    log.info(
        "%s: reading to the end before transcription; an endless stream needs live transcription",
        "stdin" if is_stdin else path,
    )
    file = tempfile.SpooledTemporaryFile(MAX_MEMORY_BYTES)  # noqa: SIM115  stays open until it is read
    with raw_stdin() if is_stdin else path.open("rb") as source:
        while piece := source.read(READ_BYTES):
            file.write(piece)
            if file.tell() > max_mb * 10**6:
                file.close()
                raise UsageError(
                    f"max_input_mb {max_mb}: {path} holds more; give a larger number, or transcribe live",
                    field="max_input_mb",
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
