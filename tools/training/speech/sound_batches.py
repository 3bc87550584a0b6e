"""The codec's batches, sounds with the phonemes of every 20 ms, and distances of sounds by their spectra."""

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from tools.training.data.clips import Clip
from tools.training.data.espeak import phoneme_classes
from tools.training.data.sound import SPEECH_RATE, samples_of
from tools.training.speech.codec_model import FRAME_SAMPLES, SUBFRAMES

LONGEST_GAP = 0.3  # seconds between sentences
WINDOWS = (2048, 1024, 512, 256, 128)  # samples; hops are a quarter
N_MELS = (128, 96, 64, 32, 16)
RESOLUTIONS = 3  # of them in each step: all of them take half of its time
MAGNITUDE_FLOOR = 1e-3  # magnitude below which a logarithm does not fall


class SoundBatch(NamedTuple):
    """samples [B, T · 1920] and phonemes int64 [B, 4·T]"""

    samples: torch.Tensor
    phonemes: torch.Tensor


def subframe_phonemes(clip: Clip, start: int, count: int) -> list[int]:
    """Classes of `count` subframes of 20 ms; the first begins at `start`, in samples of SPEECH_RATE."""
    step = FRAME_SAMPLES // SUBFRAMES
    times = (start + np.arange(count) * step + step // 2) * clip.utterance.rate / SPEECH_RATE
    classes: list[int] = phoneme_classes(clip.utterance, times).tolist()
    return classes


def make_sound(clips: Sequence[Clip], seed: str, frames: int) -> tuple[np.ndarray, list[int]]:
    """`frames` of random sentences in a row, from a random place of the first: samples and phonemes."""
    rng, length, step = random.Random(seed), frames * FRAME_SAMPLES, FRAME_SAMPLES // SUBFRAMES
    samples, phonemes, end = np.zeros(length, np.float32), [0] * (frames * SUBFRAMES), 0
    while end < length:
        clip = rng.choice(clips)
        sound = samples_of(clip, SPEECH_RATE)
        skipped = rng.randrange(len(sound) // step) * step if end == 0 else 0
        part = sound[skipped : skipped + length - end]
        samples[end : end + len(part)] = part
        first = end // step
        count = min(-(-len(part) // step), len(phonemes) - first)
        phonemes[first : first + count] = subframe_phonemes(clip, skipped, count)
        end += (-(-len(part) // step) + int(rng.uniform(0, LONGEST_GAP) * SPEECH_RATE / step)) * step
    return samples, phonemes


def make_sounds(clips: Sequence[Clip], seed: str, size: int, frames: int) -> SoundBatch:
    """Equal arguments give equal batches."""
    rows = [make_sound(clips, f"{seed}:{row}", frames) for row in range(size)]
    samples, phonemes = zip(*rows, strict=True)
    return SoundBatch(torch.from_numpy(np.stack(samples)), torch.tensor(phonemes))


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


def spectral_distance(
    found: torch.Tensor, expected: torch.Tensor, seed: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two sounds [B, n] -> mean distance of log-mel magnitudes, and of magnitudes relative to the expected
    ones. The seed draws `RESOLUTIONS` windows.
    """
    logarithmic, linear = [], []
    for size, count in random.Random(seed).sample(list(zip(WINDOWS, N_MELS, strict=True)), RESOLUTIONS):
        ours, theirs = _magnitudes(found.float(), size), _magnitudes(expected.float(), size)
        filters = _filters(size, count, str(found.device))
        mels = [((part @ filters).clamp_min(MAGNITUDE_FLOOR / 10)).log() for part in (ours, theirs)]
        logarithmic.append((mels[0] - mels[1]).abs().mean())
        linear.append((ours - theirs).norm() / theirs.norm().clamp_min(1e-3))
    return torch.stack(logarithmic).mean(), torch.stack(linear).mean()
