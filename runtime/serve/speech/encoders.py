"""Samples to the bytes of an audio file, piece by piece. What is written is never changed afterwards."""

import io
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import soundfile

UNKNOWN_SIZE = 0xFFFFFFFF
# Command of libsndfile's header that soundfile does not wrap: the longest time between two pages, in ms.
SET_OGG_PAGE_LATENCY_MS, PAGE_MS = 0x1302, 100.0


class Encoder(ABC):
    """Encodes mono 16-bit samples. Calls come from one thread at a time."""

    media_type: str
    is_quick = False  # whether a call takes so little time that it needs no thread

    @abstractmethod
    def encode(self, block: bytes) -> bytes:
        """16-bit little-endian samples -> the bytes that are complete; may be none."""

    @abstractmethod
    def finish(self) -> bytes:
        """The rest."""


class PcmEncoder(Encoder):
    """Samples as they are."""

    media_type = "audio/pcm"
    is_quick = True

    def encode(self, block: bytes) -> bytes:
        return block

    def finish(self) -> bytes:
        return b""


class WavEncoder(PcmEncoder):
    """A WAV file whose header says that its length is unknown."""

    media_type = "audio/wav"

    def __init__(self, rate: int):
        self._header = b"".join(
            (
                b"RIFF" + struct.pack("<I", UNKNOWN_SIZE) + b"WAVE",
                b"fmt " + struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16),
                b"data" + struct.pack("<I", UNKNOWN_SIZE),
            )
        )

    def encode(self, block: bytes) -> bytes:
        header, self._header = self._header, b""
        return header + block

    def finish(self) -> bytes:
        return self.encode(b"")


class _Sink(io.RawIOBase):
    """Receives a file from libsndfile. Bytes that were taken are not changed."""

    def __init__(self) -> None:
        self._bytes, self._taken, self._at = bytearray(), 0, 0

    def take(self) -> bytes:
        data, self._bytes = bytes(self._bytes), bytearray()
        self._taken += len(data)
        return data

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._taken + len(self._bytes)}
        self._at = origin[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, data: bytes) -> int:  # type: ignore[override]  # libsndfile writes a memory view
        content, start = bytes(data), self._at - self._taken
        self._at += len(content)
        skipped = max(0, -start)  # the header of an MP3 file is written again at its end
        if skipped < len(content):
            start = max(0, start)
            self._bytes[start : start + len(content) - skipped] = content[skipped:]
        return len(content)


class FileEncoder(Encoder):
    """Formats of libsndfile."""

    def __init__(self, rate: int, media_type: str, container: str, encoding: str, **options: object):
        self.media_type, self._sink = media_type, _Sink()
        self._file = soundfile.SoundFile(
            self._sink, "w", rate, 1, format=container, subtype=encoding, **options
        )
        if encoding == "OPUS":
            latency = soundfile._ffi.new("double *", PAGE_MS)
            soundfile._snd.sf_command(self._file._file, SET_OGG_PAGE_LATENCY_MS, latency, 8)

    def encode(self, block: bytes) -> bytes:
        self._file.write(np.frombuffer(block, "<i2"))
        return self._sink.take()

    def finish(self) -> bytes:
        self._file.close()
        return self._sink.take()


class WholeFileEncoder(FileEncoder):
    """A file whose first bytes depend on its last samples, so all of it is made first."""

    def encode(self, block: bytes) -> bytes:
        self._file.write(np.frombuffer(block, "<i2"))
        return b""


ENCODERS: dict[str, Callable[[int], Encoder]] = {
    "mp3": lambda rate: FileEncoder(
        rate, "audio/mpeg", "MP3", "MPEG_LAYER_III", bitrate_mode="CONSTANT", compression_level=0.5
    ),
    "opus": lambda rate: FileEncoder(rate, "audio/ogg", "OGG", "OPUS"),
    "flac": lambda rate: WholeFileEncoder(rate, "audio/flac", "FLAC", "PCM_16"),
    "wav": WavEncoder,
    "pcm": lambda rate: PcmEncoder(),
}
