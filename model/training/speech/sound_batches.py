"""Batches for the codec: sounds of a fixed length with the phonemes of every 20 ms."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from voxport.model.training.data.clips import Clip
from voxport.model.training.data.espeak import SAMPLE_RATE, phoneme_at
from voxport.model.training.data.phonemes import phoneme_class
from voxport.model.training.data.sound import SPEECH_RATE, samples_of
from voxport.model.training.speech.codec_model import SUBFRAMES

FRAME_SAMPLES = 1920
LONGEST_GAP = 0.3  # seconds between sentences


class SoundBatch(NamedTuple):
    """samples [B, T · 1920] and phonemes int64 [B, 4·T]"""

    samples: torch.Tensor
    phonemes: torch.Tensor


def subframe_phonemes(clip: Clip, start: int, count: int) -> list[int]:
    """Classes of `count` subframes of 20 ms; the first begins at `start`, in samples of SPEECH_RATE."""
    step = FRAME_SAMPLES // SUBFRAMES
    times = (start + np.arange(count) * step + step // 2) * SAMPLE_RATE / SPEECH_RATE
    names = phoneme_at(clip.utterance.phonemes, times, len(clip.utterance.samples))
    return [phoneme_class(name) for name in names]


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
