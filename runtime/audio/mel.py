"""The log-mel front end of speech recognition, frame by frame as samples arrive."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SMALLEST_POWER = 1e-10
AT_ONCE = 2**17  # samples: their spectra take 3 MB


@dataclass(frozen=True)
class MelSettings:
    """`least` is the floor of a decimal logarithm; sizes are samples."""

    sample_rate: int
    n_mels: int
    window_size: int
    hop_length: int
    least: float


class LogMel:
    """Log-mel frames of a stream that begins and ends in silence.

    Frame k is centred at sample k · hop: a periodic Hann window, the power spectrum, Slaney's filters from 0 Hz to half the rate, the
    decimal logarithm not below the fixed floor, then (x + 4) / 4. Before the first sample and behind the last there is silence,
    which is what reflection finds in a recording padded with it. However the samples are cut, the frames are the same.
    """

    def __init__(self, settings: MelSettings):
        from mistral_common.audio import mel_filter_bank

        self._settings = settings
        size, rate = settings.window_size, settings.sample_rate
        self._filters = mel_filter_bank(size // 2 + 1, settings.n_mels, 0.0, rate / 2, rate)  # [bins, mels]
        self._hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
        self._left = np.zeros(size // 2, np.float32)  # samples that later frames still need

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """samples float32 [n] in [-1, 1] -> the frames that they complete, float32 [frames, n_mels]."""
        if len(samples) <= AT_ONCE:
            return self._feed(samples)
        pieces = [self._feed(samples[start : start + AT_ONCE]) for start in range(0, len(samples), AT_ONCE)]
        return np.concatenate(pieces)

    def _feed(self, samples: np.ndarray) -> np.ndarray:
        size, hop = self._settings.window_size, self._settings.hop_length
        joined = np.concatenate((self._left, samples))
        count = max(0, (len(joined) - size) // hop + 1)
        self._left = joined[count * hop :]
        if not count:
            return np.zeros((0, self._settings.n_mels), np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(joined, size)[: count * hop : hop]
        power = np.square(np.abs(np.fft.rfft(windows * self._hann)))
        logarithm = np.log10(np.maximum(power @ self._filters, SMALLEST_POWER))
        return ((np.maximum(logarithm, self._settings.least) + 4) / 4).astype(np.float32)

    def finish(self) -> np.ndarray:
        """The frames that reach beyond the last sample, but for the one centred behind it."""
        size, hop = self._settings.window_size, self._settings.hop_length
        return self.feed(np.zeros(max(0, size // 2 - hop), np.float32))
