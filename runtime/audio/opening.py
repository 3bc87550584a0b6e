"""Opens audio for libsndfile: files, named pipes, standard input. Names the kind of other files."""

import logging
import os
import re
import shlex
import sys
import tempfile
from io import SEEK_CUR, SEEK_END, RawIOBase
from pathlib import Path
from typing import IO

import soundfile

from voxport.bundle.bounds import MAX_RATE, MIN_RATE
from voxport.bundle.errors import UsageError, first_line

MAX_MEMORY_BYTES = 2**24  # a larger file from a pipe is stored on disk
READ_BYTES = 2**20
MAX_INPUT_MB = 2048  # limit of a recording from a pipe: 3 hours of 16-bit stereo sound at 48 kHz
UNKNOWN_BYTES = 0x7FFF0000  # smallest length in the header of a WAV that was written to a pipe
UNKNOWN_FRAMES = 2**62  # smallest number of frames that libsndfile reports for an unknown length
EXPECTED = "expected WAV, FLAC, MP3, OGG or another format of libsndfile"
MAX_TAG_BYTES = 2**12  # tags and padding behind the samples, without a warning
UNKNOWN_FORMAT = 1  # an error of libsndfile
HEAD_BYTES = 2**16  # examined part of a file
KINDS = {  # what begins a file: what the file is
    rb".{4}ftyp(3g|kdd)": "3GP",
    rb".{4}(ftyp|moov|mdat|wide|free)": "MP4, M4A or QuickTime (AAC or ALAC)",
    rb"\x1a\x45\xdf\xa3": "WebM or Matroska",
    rb"#!AMR": "AMR",
    rb"ADIF|\xff[\xf0\xf1\xf8\xf9]": "ADTS AAC",
    rb"\x30\x26\xb2\x75\x8e\x66\xcf\x11": "WMA or another ASF file",
    rb"OggS": "Ogg without Vorbis, Opus or FLAC",
    rb"RIFF.{4}AVI ": "AVI",
    rb"RIFF|RIFX|RF64|FORM|fLaC": "a damaged WAV, AIFF or FLAC, or one with an unknown codec",
    rb"\x00\x00\x01\xba|\x47.{187}\x47": "MPEG video",
}
ID3 = rb"ID3...(....)"  # a tag, and its size in four times 7 bits
MPEG_FRAME = rb"\xff[\xe2\xe3\xf2\xf3\xfa\xfb][\x10-\xeb]"  # header of a frame of layer III
MAX_FRAME_BYTES = 3000  # more than a frame has
CHUNK = rb"[A-Za-z ][A-Za-z0-9 ]{3}"  # name of a part of a WAV
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


def open_audio(source: IO[bytes], name: str) -> soundfile.SoundFile:
    """Opens what `source_of` returned; `name` is for messages. Raises UsageError.

    libsndfile takes each file that is called .mp3 for an MP3. It gets a name only if the file has frames of
    an MP3.
    """
    source.seek(0)
    head = source.read(HEAD_BYTES)
    source.seek(0)
    is_mp3 = name.lower().endswith(".mp3") and kind_of(head) is None and has_mpeg_frames(head)
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
    if (rate := rate_of(head)) is not None and not MIN_RATE <= rate <= MAX_RATE:
        return wrong_rate(name, rate)
    is_known = getattr(error, "code", UNKNOWN_FORMAT) != UNKNOWN_FORMAT
    found, advice = "damaged" if is_known else "in no known format" if head else "empty", EXPECTED
    if (kind := kind_of(head)) is not None:
        found, advice = kind, f"convert it: ffmpeg -i {shlex.quote(name)} OUT.wav"
    return UsageError(f"{name}: cannot be read as audio: it is {found}; {advice}")


def wrong_rate(name: str, rate: int) -> UsageError:
    return UsageError(f"{name}: sample rate {rate}, expected {MIN_RATE} to {MAX_RATE} Hz; repair its header")


def warn_of_wrong_length(path: Path) -> None:
    """Compares a WAV with the length in its header, because libsndfile accepts a shorter or longer file."""
    with path.open("rb") as file:
        head = file.read(12)
        samples, behind = wav_lengths(file)
    length, size = int.from_bytes(head[4:8], "little") + 8, path.stat().st_size
    if head[:4] == b"RIFF" and size < length < UNKNOWN_BYTES:
        log.warning("%s: truncated: it has %d bytes of the %d in its header", path, size, length)
    elif samples and behind > MAX_TAG_BYTES:
        message = "%s: its header names %d bytes of samples; %d bytes behind them are not read; repair it"
        log.warning(message, path, samples, behind)


def _copy_of_pipe(path: Path) -> IO[bytes]:
    """All bytes of a pipe, a file, or of stdin for `-`, as a seekable file that can be changed.

    Raises UsageError if stdin is closed, or beyond `MAX_INPUT_MB`.
    """
    is_stdin = str(path) == "-"
    if is_stdin or not path.is_file():
        message = "%s: reading to the end before transcription; an endless stream needs live transcription"
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


def kind_of(head: bytes) -> str | None:
    """The kind of a file by its first bytes; None if they are unknown."""
    if tag := re.match(ID3, head, re.DOTALL):
        size = sum((byte & 0x7F) << shift for byte, shift in zip(tag[1], (21, 14, 7, 0), strict=True))
        head = head[tag.end() + size :]
    return next((kind for start, kind in KINDS.items() if re.match(start, head, re.DOTALL)), None)


def rate_of(head: bytes) -> int | None:
    """Samples per second by the header of a WAV, a FLAC or an AU; None for other files."""
    if head[:4] in (b"RIFF", b"RIFX", b"RF64") and (at := head.find(b"fmt ")) > 0:
        return int.from_bytes(head[at + 12 : at + 16], "big" if head[:4] == b"RIFX" else "little")
    if head[:4] == b".snd":
        return int.from_bytes(head[16:20], "big")
    return int.from_bytes(head[18:21], "big") >> 4 if head[:4] == b"fLaC" else None


def has_mpeg_frames(head: bytes) -> bool:
    """Whether the bytes hold frames of MP3, even if other bytes come before them."""
    return len(re.findall(MPEG_FRAME, head)) >= max(3, len(head) // MAX_FRAME_BYTES)


def _has_no_length(file: IO[bytes]) -> bool:
    size, behind = wav_lengths(file)
    return not size and behind > 0


def wav_lengths(file: IO[bytes]) -> tuple[int, int]:
    """Bytes of samples by the header of a WAV, and bytes behind them that belong to no chunk.

    Both are 0 for other files.
    """
    end = file.seek(0, SEEK_END)
    file.seek(0)
    name, size, head = b"", 0, file.read(12)
    if head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return 0, 0
    while name != b"data" and file.tell() < min(end, HEAD_BYTES):
        name, size = file.read(4), int.from_bytes(file.read(4), "little")
        file.seek(size + size % 2, SEEK_CUR)
    behind = end - file.tell()
    if name != b"data" or behind <= 0:
        return 0, 0
    is_chunk = re.match(CHUNK, file.read(4)) and int.from_bytes(file.read(4), "little") <= behind - 8
    return size, 0 if is_chunk else behind
