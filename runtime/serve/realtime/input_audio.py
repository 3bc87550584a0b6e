"""`InputAudio`: audio that a client sends, up to its end. Also the encodings of audio in messages."""

import asyncio
import base64
import binascii
import io
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import soundfile

from voxport.runtime.audio.files import from_pcm16
from voxport.runtime.audio.silero import RATE
from voxport.runtime.audio.sources import FILE_HEADERS, Converter
from voxport.runtime.audio.turns import TurnAudio, TurnDetector, TurnSettings
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.transcription.job import TranscriptionJob

DATA_URL = re.compile(r"^data:[^,]{0,100};base64,")
URL_SAFE = str.maketrans("-_", "+/")


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
        """Takes samples float32 [n] at `rate`."""
        self.samples += len(samples)
        self.job.feed(self.converter.feed(samples))

    def finish(self) -> None:
        self.job.feed(self.converter.finish())
        self.job.finish()


class TurnStream:
    """A stream at the rate of a client, and its turns at `RATE`."""

    def __init__(self, rate: int, settings: TurnSettings, position: int = 0):
        """`position`: samples at `RATE` of the session so far."""
        self.rate, self.settings = rate, settings
        self._converter, self.detector = Converter(rate, RATE), TurnDetector(settings, position)

    def feed(self, samples: np.ndarray) -> list[TurnAudio]:
        """Takes samples float32 [n] at the rate of the client."""
        return self.detector.feed(self._converter.feed(samples))

    def end_turn(self) -> list[TurnAudio]:
        """Ends the current turn, or makes one of the audio since the last turn."""
        pieces = self.detector.feed(self._converter.finish())
        self._converter = Converter(self.rate, RATE)
        is_over = bool(pieces) and pieces[-1].end_ms is not None
        return pieces if is_over else [*pieces, self.detector.end_turn()]


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


def decode_audio(text: object, encoding: str = "pcm_s16le") -> np.ndarray:
    """Base64 of samples -> float32 [n], n at least 1. Raises ApiError."""
    size, decode = ENCODINGS[encoding]
    if not isinstance(text, str):
        raise _wrong_audio(f"expected base64 of samples in {encoding}")
    content = _from_base64(text)
    if not content or len(content) % size:
        raise _wrong_audio(f"{len(content)} bytes, expected whole samples of {8 * size} bits")
    if content.startswith(FILE_HEADERS):
        raise _wrong_audio(f"begins as an audio file, expected raw samples in {encoding}")
    samples = decode(content)
    if not np.isfinite(samples).all():
        raise _wrong_audio("has a sample that is not a finite number")
    return samples


def _from_base64(text: str) -> bytes:
    """Some clients send a data URL, line breaks, the alphabet of URLs, or no padding. Raises ApiError."""
    with suppress(binascii.Error, ValueError):
        return base64.b64decode(text, validate=True)
    text = "".join(DATA_URL.sub("", text, 1).split()).translate(URL_SAFE).rstrip("=")
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        raise _wrong_audio("is not base64") from None


def _wrong_audio(reason: str) -> ApiError:
    return ApiError(400, f"audio: {reason}", "invalid_audio", "audio")
