"""How loud speech is, whatever clicks, coughs and pauses are around it, and which frequencies it has."""

from collections import deque

import numpy as np

FRAME_S = 0.02
BACKGROUND_PART = 5  # a fifth of the frames is not louder than the background
MIN_ACTIVE, MIN_ACTIVE_FRAMES = 2.0, 5  # ratio to the background; with fewer such frames, all count
LOUD_FRAMES, LOUD_PART = 45, 0.03  # the loudest active frames may be a cough: 0.9 s, and 3 %
MAX_LOUDER, MAX_CREST = 8.0, 50.0  # levels and peaks of speech above its typical level: 15 and 30 dB
COUGH_EDGE = 3  # frames before and after louder ones that do not count either
LOW_HZ, HIGH_HZ = 100.0, 4100.0  # telephones carry 300 to 3400 Hz, filters of converters end above 4000
MIN_HIGH_PART = 1e-5  # part of the power; consonants have a hundredth
QUIETER_PART = 0.9  # part of the quieter half that counts, because the others may hold clicks


class SpeechLevel:
    """The peak of speech in sound that comes in blocks of 20 ms or more.

    A peak far above the typical level of active frames is a click or a cough, and does not count. The level
    of a frame is the median of absolute samples, which clicks do not change.
    """

    def __init__(self, rate: int, window: int = 0):
        """`window`: the last blocks that count; 0 counts all."""
        self._rate, self._count = rate, 0
        self._blocks: deque[np.ndarray] = deque(maxlen=window or None)  # levels, peaks of the frames [2, n]

    @property
    def seconds(self) -> float:
        """Length of all sound so far."""
        return self._count / self._rate

    def add(self, samples: np.ndarray) -> None:
        """samples float32 [n]"""
        self._count += len(samples)
        frames = np.abs(_frames(samples, self._rate))
        middle = frames.shape[1] // 2
        levels = np.partition(frames, middle, axis=1)[:, middle]
        self._blocks.append(np.stack((levels, frames.max(axis=1))))

    def peak(self, of_quieter_half: bool = False) -> float:
        """The largest absolute sample of the speech so far, or of its quieter half."""
        levels, peaks = np.concatenate([np.zeros((2, 0)), *self._blocks], axis=1)
        sounding = np.sort(levels[levels > 0])
        if not len(sounding):
            return float(np.median(peaks)) if len(peaks) else 0.0
        active = sounding[sounding > MIN_ACTIVE * sounding[len(sounding) // BACKGROUND_PART]]
        active = active if len(active) >= MIN_ACTIVE_FRAMES else sounding
        if of_quieter_half:
            is_quieter = (levels >= active[0]) & (levels <= np.median(active))
            return float(np.quantile(peaks[is_quieter], QUIETER_PART))
        loud = min(max(LOUD_FRAMES, round(LOUD_PART * len(active))), len(active) // 2)
        typical = active[-1 - loud]
        near = np.convolve(levels > MAX_LOUDER * typical, np.ones(2 * COUGH_EDGE + 1))[COUGH_EDGE:-COUGH_EDGE]
        return float(peaks[(near == 0) & (peaks <= MAX_CREST * typical)].max(initial=typical))


def band_powers(samples: np.ndarray, rate: int) -> np.ndarray:
    """Power of samples float32 [n] below and above 4.1 kHz. Speech of a telephone has nothing above."""
    frames = _frames(samples, rate)
    power = np.square(np.abs(np.fft.rfft(frames * np.hanning(frames.shape[1])))).sum(axis=0)
    frequencies = np.fft.rfftfreq(frames.shape[1], 1 / rate)
    is_high = frequencies > HIGH_HZ
    return np.array([power[(frequencies > LOW_HZ) & ~is_high].sum(), power[is_high].sum()])


def _frames(samples: np.ndarray, rate: int) -> np.ndarray:
    """Frames [k, 20 ms] that cover all samples, or one shorter frame."""
    size = max(1, round(FRAME_S * rate))
    if len(samples) <= size:
        return samples[None] if len(samples) else np.zeros((1, 1), np.float32)
    whole = samples[: len(samples) // size * size].reshape(-1, size)
    return np.concatenate((whole, samples[None, -size:])) if len(samples) % size else whole
