"""Samples to audio: files, and raw bytes for a pipe."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bundle.errors import UsageError, VoxportError
from bundle.files import check_writable, write_whole

FULL_SCALE = 32767


@dataclass(frozen=True)
class Format:
    """How libsndfile calls a container and its coding; `rates` in Hz, None where any will do."""

    container: str
    coding: str
    rates: tuple[int, ...] | None = None

    def nearest_rate(self, rate: int) -> int:
        """`rate` itself, else the next one above that the format holds, else its highest."""
        if self.rates is None or rate in self.rates:
            return rate
        return min((higher for higher in self.rates if higher > rate), default=max(self.rates))


RAW = Format("RAW", "PCM_16")
FORMATS = {
    ".wav": Format("WAV", "PCM_16"),
    ".flac": Format("FLAC", "PCM_16"),
    ".mp3": Format("MP3", "MPEG_LAYER_III", (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)),
    # Opus, because libsndfile's Vorbis encoder overflows its stack on minutes written at once
    ".ogg": Format("OGG", "OPUS", (8000, 12000, 16000, 24000, 48000)),
    ".pcm": RAW,
}


def check_format(path: Path) -> Format:
    """The format that the name of `path` asks for; call it before the work whose result goes there.

    Raises UsageError where the extension is unknown, the folder is missing or closed to writing, or `path` is a folder.
    """
    audio_format = FORMATS.get(path.suffix.lower())
    if audio_format is None:
        raise UsageError(
            f"{path}: cannot write {path.suffix or 'a name without extension'}; end the name in one of {', '.join(FORMATS)}"
        )
    check_writable(path)
    return audio_format


def pcm16(samples: np.ndarray) -> bytes:
    """Samples [n] in [-1, 1] as signed 16-bit little-endian integers: times 32767, half to even, clipped.

    Raises VoxportError where a sample is not finite.
    """
    return _integers(_clipped(samples)).tobytes()


def write_audio(path: Path, samples: np.ndarray, rate: int) -> None:
    """Write mono `samples` [n] (float32, clipped to [-1, 1]) of `rate` Hz in the format of `path`'s extension.

    .mp3 and .ogg (Opus) are resampled where they cannot hold `rate`. The file gets its name once it is complete.
    Raises UsageError as `check_format` does, VoxportError where there is no sample, one is not finite, or writing fails.
    """
    audio_format = check_format(path)
    if samples.ndim != 1 or not len(samples):
        raise VoxportError(
            f"{path}: no audio of shape {list(samples.shape)} can be written; expected samples [n], n at least 1"
        )
    clipped = _clipped(samples)
    content = (
        _integers(clipped).tobytes() if audio_format is RAW else _encoded(clipped, rate, audio_format, path)
    )
    write_whole(path, content)


def _clipped(samples: np.ndarray) -> np.ndarray:
    finite = np.isfinite(samples)
    if not finite.all():
        first = int(np.argmin(finite))
        raise VoxportError(
            f"sample {first} of {len(samples)} is {samples[first]}, expected a finite number; verify the bundle"
        )
    return np.clip(samples, -1.0, 1.0)


def _integers(clipped: np.ndarray) -> np.ndarray:
    # float64, because a float32 product is rounded before the rounding that counts
    return np.rint(clipped.astype(np.float64) * FULL_SCALE).astype("<i2")


def _encoded(clipped: np.ndarray, rate: int, audio_format: Format, path: Path) -> bytes:
    """A whole file in memory: libsndfile swallows the errors of a full disk, `bytes` are written by Python."""
    import soundfile

    written_rate = audio_format.nearest_rate(rate)
    samples = _resampled(clipped, rate, written_rate)
    buffer = io.BytesIO()
    try:
        values = _integers(samples) if audio_format.coding == "PCM_16" else samples
        soundfile.write(buffer, values, written_rate, audio_format.coding, format=audio_format.container)
    except (soundfile.LibsndfileError, ValueError) as error:
        reason = getattr(error, "error_string", error)  # without the address of the buffer
        raise VoxportError(
            f"{path}: cannot encode {len(samples)} samples at {written_rate} Hz: {reason}; try .wav"
        ) from None
    return buffer.getvalue()


def _resampled(clipped: np.ndarray, rate: int, to: int) -> np.ndarray:
    if rate == to:
        return clipped
    import soxr

    return np.clip(soxr.resample(clipped, rate, to), -1.0, 1.0)  # the filter overshoots at edges
