"""Samples to audio files, and to raw bytes for a pipe."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bundle.errors import UsageError, VoxportError
from bundle.files import check_writable, write_whole

SAMPLE_BYTES = 2  # of 16-bit PCM
PCM16_SCALE = 32768  # integers per 1.0, when samples are read
MAX_PCM16 = 32767  # the integer of 1.0, when samples are written
SOUNDS = {".wav", ".flac", ".mp3", ".ogg", ".m4a", ".opus", ".aac", ".pcm"}  # ends of names of recordings


@dataclass(frozen=True)
class Format:
    """Names of a container and its encoding in libsndfile. `rates` in Hz; None means any."""

    container: str
    encoding: str
    rates: tuple[int, ...] | None = None

    def nearest_rate(self, rate: int) -> int:
        """`rate` if the format supports it, else the next higher supported rate, else the highest."""
        if self.rates is None or rate in self.rates:
            return rate
        return min((higher for higher in self.rates if higher > rate), default=max(self.rates))


RAW = Format("RAW", "PCM_16")
MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
FORMATS = {
    ".wav": Format("WAV", "PCM_16"),
    ".flac": Format("FLAC", "PCM_16"),
    ".mp3": Format("MP3", "MPEG_LAYER_III", MP3_RATES),
    # Opus, because libsndfile's Vorbis encoder overflows its stack when minutes are written in one call
    ".ogg": Format("OGG", "OPUS", (8000, 12000, 16000, 24000, 48000)),
    ".pcm": RAW,
}


def check_format(path: Path) -> Format:
    """The format of the extension of `path`. Call it before the work whose result is written there.

    Raises UsageError if the extension is unknown, the folder is missing or not writable, or `path` is a
    folder.
    """
    audio_format = FORMATS.get(path.suffix.lower())
    if audio_format is None:
        found = path.suffix or "a name without extension"
        raise UsageError(f"{path}: cannot write {found}; use an extension of {', '.join(FORMATS)}")
    check_writable(path)
    return audio_format


def pcm16(samples: np.ndarray) -> bytes:
    """Samples [n] in [-1, 1] as signed 16-bit little-endian integers.

    Values are clipped, multiplied by 32767 and rounded half to even. Raises VoxportError on a sample that is
    not finite.
    """
    return _integers(_clipped(samples)).tobytes()


def from_pcm16(content: bytes) -> np.ndarray:
    """Signed 16-bit little-endian integers as samples float32 [n] in [-1, 1)."""
    return np.frombuffer(content, "<i2").astype(np.float32) / PCM16_SCALE


def write_audio(path: Path, samples: np.ndarray, rate: int) -> None:
    """Writes mono `samples` float32 [n] of `rate` Hz in the format of the extension of `path`.

    Samples are clipped to [-1, 1]. A rate that .mp3 or .ogg (Opus) does not support is resampled. The file
    appears under its name when it is complete. Raises UsageError like `check_format`. Raises VoxportError if
    there are no samples, one is not finite, or writing fails.
    """
    audio_format = check_format(path)
    if samples.ndim != 1 or not len(samples):
        raise VoxportError(
            f"{path}: cannot write samples of shape {list(samples.shape)}; expected samples [n], n at least 1"
        )
    write_whole(path, pcm16(samples) if audio_format is RAW else _encoded(samples, rate, audio_format, path))


def _clipped(samples: np.ndarray) -> np.ndarray:
    finite = np.isfinite(samples)
    if not finite.all():
        first = int(np.argmin(finite))
        raise VoxportError(
            f"sample {first} of {len(samples)} is {samples[first]}, expected a finite number; "
            "verify the bundle"
        )
    return np.clip(samples, -1.0, 1.0)


def _integers(clipped: np.ndarray) -> np.ndarray:
    # float64, because a float32 product would be rounded before the rounding to integers
    return np.rint(clipped.astype(np.float64) * MAX_PCM16).astype("<i2")


def _encoded(samples: np.ndarray, rate: int, audio_format: Format, path: Path) -> bytes:
    """The content of the file. It is encoded in memory because libsndfile does not report a full disk."""
    import soundfile
    import soxr

    values, buffer, file_rate = _clipped(samples), io.BytesIO(), audio_format.nearest_rate(rate)
    if file_rate != rate:
        values = np.clip(soxr.resample(values, rate, file_rate), -1.0, 1.0)  # the filter overshoots
    try:
        values = _integers(values) if audio_format.encoding == "PCM_16" else values
        soundfile.write(buffer, values, file_rate, audio_format.encoding, format=audio_format.container)
    except (soundfile.LibsndfileError, ValueError) as error:
        reason = getattr(error, "error_string", error)  # without the address of the buffer
        raise VoxportError(
            f"{path}: cannot encode {len(values)} samples at {file_rate} Hz: {reason}; try .wav"
        ) from None
    return buffer.getvalue()
