"""Sound for training: resampling, log-mel frames as the runtime computes them, and augmentation."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import soxr
import torch

from tools.training.data.clips import Clip

RECOGNITION_RATE, SPEECH_RATE = 16000, 24000
N_MELS, WINDOW, HOP = 128, 400, 160
LEAST_POWER, LEAST_LOG = 1e-10, -6.5
NOISE_SMOOTHING = (0.0, 0.7, 0.95)  # decay of a filter: white noise, and two that have more low frequencies


def samples_of(clip: Clip, rate: int) -> np.ndarray:
    """float32 [n] in [-1, 1] at `rate`"""
    found: np.ndarray = soxr.resample(
        clip.utterance.samples.astype(np.float32) / 32768, clip.utterance.rate, rate
    )
    return found


@lru_cache(maxsize=2)
def _filters(device: str) -> torch.Tensor:
    from mistral_common.audio import mel_filter_bank

    filters = mel_filter_bank(WINDOW // 2 + 1, N_MELS, 0.0, RECOGNITION_RATE / 2, RECOGNITION_RATE)
    return torch.from_numpy(np.asarray(filters)).float().to(device)  # [bins, mels]


def log_mel(samples: torch.Tensor) -> torch.Tensor:
    """samples [B, n] at RECOGNITION_RATE, n a multiple of HOP -> [B, n / HOP, mels].

    Equal to `runtime.audio.mel`.
    """
    window = torch.hann_window(WINDOW, device=samples.device)
    spectrum = torch.stft(samples, WINDOW, HOP, window=window, pad_mode="constant", return_complex=True)
    power = spectrum[:, :, :-1].abs().square().mT  # [B, frames, bins]
    logarithm = (power @ _filters(str(samples.device))).clamp_min(LEAST_POWER).log10()
    return (logarithm.clamp_min(LEAST_LOG) + 4) / 4


def at_speed(clip: Clip, factor: float) -> Clip:
    """The clip as if it had been recorded at another rate: faster and higher, or slower and lower."""
    rate = round(clip.utterance.rate * factor)
    return replace(clip, utterance=replace(clip.utterance, rate=rate))


def augment(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Another room, band, noise, level and offset: float32 [n] in and out. One of eight is unchanged."""
    if rng.random() < 1 / 8:
        return samples
    if rng.random() < 0.3:
        samples = in_room(samples, rng.uniform(0.1, 0.7), rng.uniform(0.1, 0.6), rng)
    if rng.random() < 0.25:
        low, high = [(300, 3400), (100, 4000), (60, 6000)][rng.integers(3)]
        samples = in_band(samples, low, high)
    if rng.random() < 0.6:
        noise = rng.standard_normal(len(samples), dtype=np.float32)
        samples = with_noise(samples, noise, rng.choice(NOISE_SMOOTHING), rng.uniform(5, 40))
    if rng.random() < 0.1:
        clicks = rng.integers(len(samples), size=rng.integers(1, 20))
        samples = samples.copy()
        samples[clicks] += rng.uniform(-0.5, 0.5, len(clicks)).astype(np.float32)
    level, offset = 10 ** rng.uniform(-1.5, 0.4), rng.uniform(-0.1, 0.1) * (rng.random() < 0.15)
    changed: np.ndarray = (samples * np.float32(level) + np.float32(offset)).clip(-1, 1)
    return changed


def in_room(samples: np.ndarray, seconds: float, share: float, rng: np.random.Generator) -> np.ndarray:
    """Adds an echo that falls by 60 dB in `seconds`, with `share` of the power of the sound."""
    echo = rng.standard_normal(int(seconds * RECOGNITION_RATE)).astype(np.float32)
    echo *= 10 ** np.linspace(0, -3, len(echo), dtype=np.float32)
    echo[: RECOGNITION_RATE // 200] = 0  # the first echo comes after 5 ms
    echo *= np.float32(np.sqrt(share) / np.linalg.norm(echo))
    size = _fast(len(samples) + len(echo))
    found: np.ndarray = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(echo, size), size)
    return samples + found[: len(samples)].astype(np.float32)


def in_band(samples: np.ndarray, low: float, high: float) -> np.ndarray:
    """Only the frequencies from `low` to `high` Hz, with slopes of a tenth."""
    size = _fast(len(samples))
    frequencies = np.fft.rfftfreq(size, 1 / RECOGNITION_RATE)
    gain = ((frequencies / low - 0.9) / 0.1).clip(0, 1) * ((1.1 - frequencies / high) / 0.1).clip(0, 1)
    found: np.ndarray = np.fft.irfft(np.fft.rfft(samples, size) * gain, size)[: len(samples)]
    return found.astype(np.float32)


def _fast(length: int) -> int:
    """The next power of two: a Fourier transform of another length takes up to ten times as long."""
    return 1 << (length - 1).bit_length()


def with_noise(samples: np.ndarray, noise: np.ndarray, smoothing: float, decibels: float) -> np.ndarray:
    """samples and white noise float32 [n] -> float32 [n]: the noise, smoothed, is `decibels` below the mean
    power of the samples.
    """
    if smoothing:
        noise = np.convolve(noise, np.float32(smoothing) ** np.arange(64, dtype=np.float32))[: len(samples)]
    level = np.sqrt(np.mean(samples**2) / (np.mean(noise**2) + 1e-12)) * 10 ** (-decibels / 20)
    noisy: np.ndarray = (samples + noise * np.float32(level)).clip(-1, 1).astype(np.float32)
    return noisy
