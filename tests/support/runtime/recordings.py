"""Recordings of noise, and files of them."""

from pathlib import Path

import numpy as np
import soundfile

RATE = 16000


def noise(seconds: float, rate: int = RATE, channels: int = 1) -> np.ndarray:
    """float32 [n, channels]"""
    samples = 0.1 * np.random.default_rng(0).standard_normal((round(seconds * rate), channels))
    return samples.astype(np.float32)


def bursts(seconds: float, rate: int = RATE) -> np.ndarray:
    """float32 [n]: noise that comes and goes, as speech does."""
    samples = noise(seconds, rate)[:, 0]
    return samples * (8 * np.arange(len(samples)) // rate % 2).astype(np.float32)


def write_recording(path: Path, samples: np.ndarray, rate: int = RATE, **more: str) -> Path:
    soundfile.write(path, samples, rate, **more)
    return path
