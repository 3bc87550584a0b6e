"""Sound for training: resampling, log-mel frames as the runtime computes them, and augmentation."""

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
    found: np.ndarray = soxr.resample(clip.utterance.samples.astype(np.float32) / 32768, clip.rate, rate)
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


def augment(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Another loudness, and in half of the cases light noise of a random colour: float32 [n] in and out."""
    samples = samples * np.float32(10 ** rng.uniform(-0.8, 0.2))
    if rng.random() < 0.5:
        return samples
    noise = rng.standard_normal(len(samples), dtype=np.float32)
    smoothing = rng.choice(NOISE_SMOOTHING)
    return with_noise(samples, noise, smoothing, rng.uniform(15, 40))


def with_noise(samples: np.ndarray, noise: np.ndarray, smoothing: float, decibels: float) -> np.ndarray:
    """samples and white noise float32 [n] -> float32 [n]: the noise, smoothed, is `decibels` below the mean
    power of the samples.
    """
    if smoothing:
        noise = np.convolve(noise, np.float32(smoothing) ** np.arange(64, dtype=np.float32))[: len(samples)]
    level = np.sqrt(np.mean(samples**2) / (np.mean(noise**2) + 1e-12)) * 10 ** (-decibels / 20)
    noisy: np.ndarray = (samples + noise * np.float32(level)).clip(-1, 1).astype(np.float32)
    return noisy
