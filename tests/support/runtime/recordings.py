"""Recordings of noise, and files of them."""

from pathlib import Path

import numpy as np
import soundfile
from support.paths import ROOT

RATE = 16000
# one sentence of espeak-ng, 16 kHz
SENTENCE = ROOT / "tests" / "runtime" / "families" / "voxtral_realtime" / "seven_bottles.npz"


def noise(seconds: float, rate: int = RATE, channels: int = 1) -> np.ndarray:
    """float32 [n, channels]"""
    samples = 0.1 * np.random.default_rng(0).standard_normal((round(seconds * rate), channels))
    return samples.astype(np.float32)


def write_recording(path: Path, samples: np.ndarray, rate: int = RATE, **more: str) -> Path:
    soundfile.write(path, samples, rate, **more)
    return path


def sentences(count: int, pause_s: float = 1.0) -> np.ndarray:
    """`count` times a sentence of 3 s, with pauses before, between and behind: float32 [n] at 16 kHz."""
    pause, sentence = np.zeros(round(pause_s * RATE)), np.load(SENTENCE)["samples"] / 2**15
    return np.concatenate([pause, *[sentence, pause] * count]).astype(np.float32)
