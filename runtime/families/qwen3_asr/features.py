"""Log-mel features of a recording. Their floor depends on its loudest value."""

from functools import cache

import numpy as np

from voxport.bundle.constants.qwen3_asr import Qwen3ASRConstants
from voxport.bundle.errors import UsageError

MIN_POWER, RANGE = 1e-10, 8.0  # the floor is so many decades below the loudest value
BLOCK_FRAMES = 4096  # whose spectra take 13 MB


def frames_of(samples: int, constants: Qwen3ASRConstants) -> int:
    """Frames of a recording. What is less than a hop at its end gives none."""
    return samples // constants.hop_length


class GrowingMel:
    """Log-mel features of sound that grows. Spectra of finished frames are computed once."""

    def __init__(self, constants: Qwen3ASRConstants):
        self._constants = constants
        self._powers = np.zeros((0, constants.n_mels))  # of frames behind which no sample is reflected

    def of(self, samples: np.ndarray) -> np.ndarray:
        """samples float32 [n] in [-1, 1] -> float32 [frames, mels]. They begin with those of the call before.

        Raises UsageError on a recording that is too short for a window with its reflection.
        """
        constants = self._constants
        powers = np.concatenate((self._powers, _log_powers(samples, constants, len(self._powers))))
        finished = max(0, (len(samples) - constants.window_size // 2) // constants.hop_length + 1)
        self._powers = powers[:finished]
        floor = powers.max(initial=np.log10(MIN_POWER)) - RANGE
        mel: np.ndarray = ((np.maximum(powers, floor) + 4) / 4).astype(np.float32)
        return mel


def _log_powers(samples: np.ndarray, constants: Qwen3ASRConstants, first: int) -> np.ndarray:
    """log10 of the powers of frames from number `first` on: float64 [n, mels]."""
    size, hop = constants.window_size, constants.hop_length
    if len(samples) <= size // 2:
        raise UsageError(
            f"recording: {len(samples)} samples, expected more than {size // 2}; it holds no word"
        )
    filters = _filters(size, constants.n_mels, constants.sample_rate)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
    padded = np.pad(samples.astype(np.float64), size // 2, "reflect")[first * hop :]
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop]
    found = np.zeros((frames_of(len(samples), constants) - first, constants.n_mels))
    for start in range(0, len(found), BLOCK_FRAMES):
        stop = min(start + BLOCK_FRAMES, len(found))
        power = np.square(np.abs(np.fft.rfft(windows[start:stop] * window)))
        found[start:stop] = np.log10(np.maximum(power @ filters, MIN_POWER))
    return found


@cache
def _filters(size: int, bands: int, rate: int) -> np.ndarray:
    """Slaney's filters [bins, bands] from 0 Hz to half of the rate."""
    from mistral_common.audio import mel_filter_bank

    filters: np.ndarray = mel_filter_bank(size // 2 + 1, bands, 0.0, rate / 2, rate)
    return filters
