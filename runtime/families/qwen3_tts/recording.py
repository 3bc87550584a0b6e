"""Recordings that voices are made from: what is read, and what is refused."""

import logging
from pathlib import Path

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.sources import Recording

MIN_S, MAX_S, RECOMMENDED_S = 1.0, 30.0, 3.0  # published: clones need 3 s
MIN_PEAK = 10 ** (-50 / 20)  # below it a recording counts as silent
TELEPHONE_RATE, MIN_RATE = 8000, 16_000  # `Recording` warns up to the first, this module up to the other
MAX_LENGTH_RATIO = 3.0  # how many times longer or shorter than usual the speech of a transcript may be
log = logging.getLogger(__name__)


def read_samples(path: Path, rate: int, advice: str = "cut it") -> np.ndarray:
    """Samples float32 [n] at `rate` Hz. Raises UsageError, with `advice` above 30 s."""

    def check(seconds: float) -> None:
        if seconds > MAX_S:
            raise UsageError(
                f"{path}: longer than {MAX_S:g} s, which is all that the encoder takes; {advice}",
                field="recording",
            )

    recording = Recording(path, rate)
    if TELEPHONE_RATE < recording.file_rate < MIN_RATE:
        log.warning(
            "%s: %d samples per second hold no sound above %d Hz; %d or more give a better result",
            path,
            recording.file_rate,
            recording.file_rate // 2,
            MIN_RATE,
        )
    recording.peak_dbfs(check)
    samples: np.ndarray = np.clip(np.concatenate(list(recording.blocks())), -1, 1).astype(np.float32)
    return samples


def read_recording(path: Path, rate: int) -> np.ndarray:
    """As `read_samples`. Raises UsageError on a recording that no voice can be made from."""
    samples = read_samples(path, rate, "cut it, 3 to 15 s are best")
    if len(samples) < MIN_S * rate:
        raise UsageError(
            f"{path}: {len(samples) / rate:.2f} s, expected at least {MIN_S:g} s of speech",
            field="recording",
        )
    if np.abs(samples).max() < MIN_PEAK:
        raise UsageError(f"{path}: silent; give a recording of speech", field="recording")
    if len(samples) < RECOMMENDED_S * rate:
        log.warning("%s: %.1f s; a voice is better from 3 s or more", path, len(samples) / rate)
    return samples


def warn_of_transcript_mismatch(transcript: str, frames: float, estimated_frames: float) -> None:
    """Warns if the recording is much longer or shorter than its transcript explains: the model would then
    speak the rest of one of them.
    """
    if not estimated_frames / MAX_LENGTH_RATIO <= frames <= estimated_frames * MAX_LENGTH_RATIO:
        log.warning(
            "transcript: its %d characters usually take %.1f s, the recording has %.1f s; "
            "it must hold every word of the recording",
            len(transcript),
            estimated_frames * 0.08,
            frames * 0.08,
        )
