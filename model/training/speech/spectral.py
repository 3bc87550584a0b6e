"""Distances of sounds by their spectra, at several resolutions."""

from functools import lru_cache

import numpy as np
import torch

from voxport.model.training.data.sound import SPEECH_RATE

WINDOWS = (2048, 1024, 512, 256, 128)  # samples; hops are a quarter
N_MELS = (128, 96, 64, 32, 16)
MAGNITUDE_FLOOR = 1e-3  # magnitude below which a logarithm does not fall


def _magnitudes(samples: torch.Tensor, size: int) -> torch.Tensor:
    """samples [B, n] -> [B, frames, bins]"""
    window = torch.hann_window(size, device=samples.device)
    spectrum = torch.stft(samples, size, size // 4, window=window, return_complex=True)
    return (torch.view_as_real(spectrum).square().sum(-1) + 1e-9).sqrt().mT / window.sum()


@lru_cache(maxsize=16)
def _filters(size: int, count: int, device: str) -> torch.Tensor:
    from mistral_common.audio import mel_filter_bank

    filters = mel_filter_bank(size // 2 + 1, count, 0.0, SPEECH_RATE / 2, SPEECH_RATE)
    found = torch.from_numpy(np.asarray(filters)).float()
    return (found / found.sum(0).clamp_min(1e-6)).to(device)  # a weighted mean of bins


def spectral_distance(found: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sounds [B, n] -> mean distance of log-mel magnitudes, and of magnitudes relative to the expected
    ones.
    """
    logarithmic, linear = [], []
    for size, count in zip(WINDOWS, N_MELS, strict=True):
        ours, theirs = _magnitudes(found.float(), size), _magnitudes(expected.float(), size)
        filters = _filters(size, count, str(found.device))
        mels = [((part @ filters).clamp_min(MAGNITUDE_FLOOR / 10)).log() for part in (ours, theirs)]
        logarithmic.append((mels[0] - mels[1]).abs().mean())
        linear.append((ours - theirs).norm() / theirs.norm().clamp_min(1e-3))
    return torch.stack(logarithmic).mean(), torch.stack(linear).mean()
