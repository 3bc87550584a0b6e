"""Samples to the bytes of an audio file, piece by piece. What is written is never changed afterwards."""

import asyncio
import io
from dataclasses import dataclass, field
from threading import Lock

import av
import numpy as np

from voxport.runtime.audio.files import from_pcm16, pcm16
from voxport.runtime.audio.tempo import Tempo
from voxport.runtime.serve.fields import SpeechFormat


@dataclass(frozen=True)
class FileFormat:
    """`container` and `codec` are names of FFmpeg, and `bit_rate` is in bits per second.

    `is_whole`: the first bytes depend on the last samples.
    """

    media_type: str
    container: str
    codec: str
    bit_rate: int | None = None
    options: dict[str, str] = field(default_factory=dict)
    is_whole: bool = False


class _Stream(io.BytesIO):
    """FFmpeg writes each byte once."""

    def seekable(self) -> bool:
        return False


class Encoder:
    """Encodes with FFmpeg. Threads compress, because that may take milliseconds for a frame.

    One that is not finished is to be closed: it would take up to 0.5 MB until a collection of garbage.
    """

    def __init__(self, rate: int, file_format: FileFormat, file_rate: int, tempo: Tempo | None):
        """`rate` of the samples and `file_rate` in Hz; FFmpeg resamples. `tempo` changes the speed before."""
        self._rate, self._tempo = rate, tempo
        self.media_type, self._is_whole = file_format.media_type, file_format.is_whole
        self._is_plain = file_format.codec.startswith("pcm_")
        self._content = io.BytesIO() if self._is_whole else _Stream()
        # the same samples are the same bytes: no random serial number of a stream, no name of a version
        options = {"fflags": "bitexact", **file_format.options}
        self._file = av.open(self._content, "w", file_format.container, options=options)
        stream = self._file.add_stream(file_format.codec, file_rate, layout="mono")
        assert isinstance(stream, av.AudioStream)
        self._stream = stream
        if file_format.bit_rate:
            self._stream.bit_rate = file_format.bit_rate
        self._stream.codec_context.flags |= av.codec.context.Flags.bitexact
        self._in_use, self._is_closed = Lock(), False  # a thread may encode when the request is cancelled

    async def encode(self, block: bytes) -> bytes:
        """16-bit little-endian samples -> the bytes that are complete; may be none."""
        if self._tempo:
            block = pcm16(self._tempo.feed(from_pcm16(block)))
        if self._is_plain:
            self._write(block)
        else:
            await asyncio.to_thread(self._write, block)
        return b"" if self._is_whole else self._taken()

    async def finish(self) -> bytes:
        """The rest."""
        await asyncio.to_thread(self._finish)
        return self._taken()

    def close(self) -> None:
        """Nothing is encoded afterwards."""
        with self._in_use:
            if not self._is_closed:
                self._is_closed = True
                self._file.close()

    def _write(self, block: bytes) -> None:
        if block:
            samples = np.frombuffer(block, "<i2").reshape(1, -1)
            frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
            frame.sample_rate = self._rate
            self._encode(frame)

    def _finish(self) -> None:
        if self._tempo:
            self._write(pcm16(self._tempo.finish()))
        self._encode(None)
        self.close()

    def _encode(self, frame: av.AudioFrame | None) -> None:
        with self._in_use:
            if not self._is_closed:
                self._file.mux(self._stream.encode(frame))

    def _taken(self) -> bytes:
        piece = self._content.getvalue()
        self._content.seek(0)
        self._content.truncate()
        return piece


FLOAT_PCM = FileFormat("audio/pcm", "f32le", "pcm_f32le")  # what clients of Mistral expect as `pcm`
FILE_FORMATS = {
    "pcm": FileFormat("audio/pcm", "s16le", "pcm_s16le"),
    "mp3": FileFormat("audio/mpeg", "mp3", "libmp3lame", 64_000, {"write_xing": "0", "id3v2_version": "0"}),
    "opus": FileFormat("audio/ogg", "ogg", "libopus", 40_000, {"page_duration": "100000"}),  # µs
    "aac": FileFormat("audio/aac", "adts", "aac", 64_000),
    "wav": FileFormat("audio/wav", "wav", "pcm_s16le"),  # its header says that its length is unknown
    "flac": FileFormat("audio/flac", "flac", "flac", is_whole=True),
}


def make_encoder(
    name: SpeechFormat, rate: int, file_rate: int, speed: float = 1, has_float_pcm: bool = False
) -> Encoder:
    """The encoder of a format. Rates in Hz. Raises UsageError if the speed cannot be changed."""
    file_format = FLOAT_PCM if name == "pcm" and has_float_pcm else FILE_FORMATS[name]
    return Encoder(rate, file_format, file_rate, Tempo(rate, speed) if speed != 1 else None)
