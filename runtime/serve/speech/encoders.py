"""Samples to the bytes of an audio file, piece by piece. What is written is never changed afterwards."""

import asyncio
import io
import struct
from collections.abc import Callable

import numpy as np
import soundfile

from voxport.runtime.serve.fields import SpeechFormat

UNKNOWN_SIZE = 0xFFFFFFFF
# Command of libsndfile's header that soundfile does not wrap: the longest time between two pages, in ms.
SET_OGG_PAGE_LATENCY_MS, PAGE_MS = 0x1302, 100.0


class Encoder:
    """Sends mono 16-bit samples as they are."""

    media_type = "audio/pcm"

    async def encode(self, block: bytes) -> bytes:
        """16-bit little-endian samples -> the bytes that are complete; may be none."""
        return block

    async def finish(self) -> bytes:
        """The rest."""
        return b""


class WavEncoder(Encoder):
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

    async def encode(self, block: bytes) -> bytes:
        header, self._header = self._header, b""
        return header + block

    async def finish(self) -> bytes:
        return await self.encode(b"")


class _Content(io.BytesIO):
    """Stays open: a garbage collection may finalize it before the file that still writes to it."""

    def close(self) -> None:
        pass


class FileEncoder(Encoder):
    """Formats of libsndfile. Threads call it: an encoder may take milliseconds for a frame."""

    def __init__(self, rate: int, media_type: str, container: str, encoding: str, **options: object):
        self.media_type = media_type
        self._content, self._sent = _Content(), 0  # libsndfile writes the header again at the end
        self._file = soundfile.SoundFile(
            self._content, "w", rate, 1, format=container, subtype=encoding, **options
        )
        if encoding == "OPUS":
            latency = soundfile._ffi.new("double *", PAGE_MS)
            soundfile._snd.sf_command(self._file._file, SET_OGG_PAGE_LATENCY_MS, latency, 8)

    async def encode(self, block: bytes) -> bytes:
        await asyncio.to_thread(self._file.write, np.frombuffer(block, "<i2"))
        return self._take()

    async def finish(self) -> bytes:
        await asyncio.to_thread(self._file.close)
        return self._take()

    def _take(self) -> bytes:
        piece = self._content.getbuffer()[self._sent :].tobytes()
        self._sent += len(piece)
        return piece


class WholeFileEncoder(FileEncoder):
    """A file whose first bytes depend on its last samples, so all of it is made first."""

    async def encode(self, block: bytes) -> bytes:
        self._file.write(np.frombuffer(block, "<i2"))
        return b""


ENCODERS: dict[SpeechFormat, Callable[[int], Encoder]] = {
    "mp3": lambda rate: FileEncoder(
        rate, "audio/mpeg", "MP3", "MPEG_LAYER_III", bitrate_mode="CONSTANT", compression_level=0.5
    ),
    "opus": lambda rate: FileEncoder(rate, "audio/ogg", "OGG", "OPUS"),
    "flac": lambda rate: WholeFileEncoder(rate, "audio/flac", "FLAC", "PCM_16"),
    "wav": WavEncoder,
    "pcm": lambda rate: Encoder(),
}
