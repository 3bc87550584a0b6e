"""`InputAudio`: audio that a client sends, up to its end. Also the encodings of audio in messages."""

import asyncio
import base64
import binascii
import io
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import soundfile

from voxport.runtime.audio.files import from_pcm16
from voxport.runtime.audio.silero import RATE
from voxport.runtime.audio.sources import FILE_HEADERS, Converter
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.transcription.job import TranscriptionJob


@dataclass(eq=False)
class InputAudio:
    """Audio up to a commit, or a turn of speech."""

    number: int  # in the session
    job: TranscriptionJob
    converter: Converter
    rate: int
    samples: int = 0  # received, at `rate`
    reading: asyncio.Task[None] = field(init=False, repr=False)

    @property
    def seconds(self) -> float:
        return self.samples / self.rate

    def feed(self, samples: np.ndarray) -> None:
        """Takes samples float32 [n], or [n, channels], at `rate`."""
        self.samples += len(samples)
        self.job.feed(self.converter.feed(samples))

    def finish(self) -> None:
        self.job.feed(self.converter.finish())
        self.job.finish()


def _g711(encoding: str) -> np.ndarray:
    """The sample of each byte, float32 [256]. `encoding`: its name in libsndfile."""
    raw = {"samplerate": RATE, "channels": 1, "format": "RAW", "subtype": encoding}
    return np.asarray(soundfile.read(io.BytesIO(bytes(range(256))), dtype="float32", **raw)[0])


MU_LAW, A_LAW = _g711("ULAW"), _g711("ALAW")
ENCODINGS: dict[str, tuple[int, Callable[[bytes], np.ndarray]]] = {  # bytes of a sample, and what decodes it
    "pcm_s16le": (2, from_pcm16),
    "pcm_s32le": (4, lambda content: (np.frombuffer(content, "<i4") / 2.0**31).astype(np.float32)),
    "pcm_f16le": (2, lambda content: np.frombuffer(content, "<f2").astype(np.float32)),
    "pcm_f32le": (4, lambda content: np.frombuffer(content, "<f4")),
    "pcm_mulaw": (1, lambda content: MU_LAW[np.frombuffer(content, np.uint8)]),
    "pcm_alaw": (1, lambda content: A_LAW[np.frombuffer(content, np.uint8)]),
}


def decode_audio(text: object, encoding: str = "pcm_s16le", max_bytes: int | None = None) -> np.ndarray:
    """Base64 of samples -> float32 [n], n at least 1. Raises ApiError."""
    size, decode = ENCODINGS[encoding]
    if not isinstance(text, str):
        raise _wrong_audio(f"expected base64 of samples in {encoding}")
    try:
        content = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _wrong_audio("is not base64") from None
    if not content or len(content) % size:
        raise _wrong_audio(f"{len(content)} bytes, expected whole samples of {8 * size} bits")
    if max_bytes is not None and len(content) > max_bytes:
        raise _wrong_audio(f"has {len(content)} bytes, expected at most {max_bytes}")
    if content.startswith(FILE_HEADERS) or content[4:8] == b"ftyp":
        raise _wrong_audio(f"begins as an audio file, expected raw samples in {encoding}")
    samples = decode(content)
    if not np.isfinite(samples).all():
        raise _wrong_audio("has a sample that is not a finite number")
    return samples


def _wrong_audio(reason: str) -> ApiError:
    return ApiError(400, f"audio: {reason}", "invalid_audio", "audio")
