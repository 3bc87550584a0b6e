"""Samples to audio files, and to raw bytes for a pipe."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np

from voxport.bundle.errors import UsageError, VoxportError
from voxport.bundle.files import StagedFile, check_writable, reason_of, write_all

SAMPLE_BYTES = 2  # in 16-bit PCM
PCM16_SCALE = 32768  # integers per 1.0, when samples are read
MAX_PCM16 = 32767  # the integer of 1.0, when samples are written
SOUNDS = {".wav", ".flac", ".mp3", ".ogg", ".m4a", ".mp4", ".mov", ".webm", ".opus", ".aac", ".pcm"}


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
# Opus, because libsndfile's Vorbis encoder overflows its stack when minutes are written in one call
OPUS = Format("OGG", "OPUS", (8000, 12000, 16000, 24000, 48000))
FORMATS = {
    ".wav": Format("WAV", "PCM_16"),
    ".flac": Format("FLAC", "PCM_16"),
    ".mp3": Format("MP3", "MPEG_LAYER_III", MP3_RATES),
    ".ogg": OPUS,
    ".opus": OPUS,
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
    """Writes mono `samples` float32 [n] of `rate` Hz with `audio_writer`, whose errors it raises.

    Also raises VoxportError if there are no samples.
    """
    if samples.ndim != 1 or not len(samples):
        raise VoxportError(
            f"{path}: cannot write samples of shape {list(samples.shape)}; expected samples [n], n at least 1"
        )
    with audio_writer(path, rate) as writer:
        writer.write(samples)


@contextmanager
def audio_writer(path: Path, rate: int) -> Iterator["AudioWriter"]:
    """Writes mono samples of `rate` Hz piece by piece, in the format of the extension of `path`.

    The file appears under its name when the context ends without an error. Raises UsageError like
    `check_format`, and VoxportError if writing fails.
    """
    audio_format = check_format(path)
    with StagedFile(path) as staged:
        writer = AudioWriter(staged, audio_format, rate)
        try:
            yield writer
            writer.finish()
        finally:
            writer.close()


class AudioWriter:
    """The samples of a file that `audio_writer` writes.

    They are clipped to [-1, 1]. A rate that .mp3 or Opus (.ogg, .opus) does not support is resampled.
    """

    def __init__(self, staged: StagedFile, audio_format: Format, rate: int):
        import soundfile
        import soxr

        file_rate = audio_format.nearest_rate(rate)
        self._rate, self.seconds = rate, 0.0  # seconds: written so far
        self._staged, self._sink = staged, _Sink(staged.file)
        self._is_pcm = audio_format.encoding == "PCM_16"
        self._resampler = soxr.ResampleStream(rate, file_rate, 1, "float32") if file_rate != rate else None
        endian = "LITTLE" if audio_format is RAW else "FILE"  # `FILE`: as the format has it
        names = (audio_format.encoding, endian, audio_format.container)
        try:
            self._encoder = soundfile.SoundFile(self._sink, "w", file_rate, 1, *names)
        except (soundfile.LibsndfileError, ValueError) as error:
            reason = getattr(error, "error_string", error)
            path = staged.path
            raise VoxportError(
                f"{path}: cannot encode samples at {file_rate} Hz: {reason}; try .wav"
            ) from None

    def write(self, samples: np.ndarray) -> None:
        """samples float32 [n]. Raises VoxportError on a sample that is not finite, or if writing fails."""
        values = _clipped(samples)
        self.seconds += len(values) / self._rate
        self._encode(self._resampler.resample_chunk(values) if self._resampler else values)

    def finish(self) -> None:
        """Writes what is left. Raises VoxportError."""
        if self._resampler:
            self._encode(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))
        self.close()
        self._check()

    def keep_partial(self) -> str:
        """Ends the file early, also after an error of writing: see `StagedFile.keep_partial`."""
        self.close()
        return self._staged.keep_partial()

    def close(self) -> None:
        self._encoder.close()

    def _encode(self, values: np.ndarray) -> None:
        values = np.clip(values, -1.0, 1.0)  # the filter of the resampler overshoots
        self._encoder.write(_integers(values) if self._is_pcm else values)
        self._check()

    def _check(self) -> None:
        if self._sink.error:
            raise VoxportError(f"{self._staged.path}: cannot be written: {reason_of(self._sink.error)}")


class _Sink:
    """A file for libsndfile, which does not report a full disk: keeps the first error of writing."""

    def __init__(self, file: FileIO):
        self.seek, self.tell, self.readinto, self._file = file.seek, file.tell, file.readinto, file
        self.error: OSError | None = None

    def write(self, content: bytes) -> int:
        try:
            write_all(self._file, content)
        except OSError as error:
            self.error = self.error or error
        return len(content)


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
