"""Log-mel frames of sound that arrives, for speech recognition, and the distance of two pieces of audio."""

from dataclasses import dataclass

import numpy as np

from voxport.bundle.errors import IntegrityError

MIN_POWER = 1e-10
COMPARED_BINS, COMPARED_WINDOW, COMPARED_HOP = 80, 1024, 256  # for `compare_audio`
BLOCK_SAMPLES = 2**17  # samples per step; their spectra take 3 MB


@dataclass(frozen=True)
class MelSettings:
    """Sizes are in samples. `min_log` is the lower bound of the decimal logarithm."""

    sample_rate: int
    n_mels: int
    window_size: int
    hop_length: int
    min_log: float


class LogMel:
    """Log-mel frames of one stream. They do not depend on the sizes of the blocks of samples.

    Frame k is centred at sample k * hop_length. It is computed in these steps:

    - periodic Hann window and power spectrum,
    - Slaney's mel filters from 0 Hz to half the sample rate,
    - decimal logarithm, at least `min_log`,
    - (x + 4) / 4.

    The signal is zero before its first and after its last sample. For a recording padded with zeros this
    equals the reflection padding of the published front end.
    """

    def __init__(self, settings: MelSettings):
        """Raises IntegrityError on settings that no front end can have."""
        from mistral_common.audio import mel_filter_bank

        self._settings = settings
        size, rate, bands = settings.window_size, settings.sample_rate, settings.n_mels
        try:
            self._filters = mel_filter_bank(size // 2 + 1, bands, 0.0, rate / 2, rate)  # [bins, mels]
        except ValueError:  # its advice is for callers of the library
            raise IntegrityError(
                f"manifest.json: constants: {bands} mel bands do not fit a window of {size} samples at "
                f"{rate} Hz; export the bundle again"
            ) from None
        self._window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)
        self._rest = np.zeros(size // 2, np.float32)  # samples that later frames need

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """samples float32 [n] in [-1, 1] -> the frames that they complete, float32 [frames, n_mels]."""
        starts = range(0, max(1, len(samples)), BLOCK_SAMPLES)
        return np.concatenate([self._feed_block(samples[start : start + BLOCK_SAMPLES]) for start in starts])

    def _feed_block(self, samples: np.ndarray) -> np.ndarray:
        size, hop = self._settings.window_size, self._settings.hop_length
        joined = np.concatenate((self._rest, samples))
        count = max(0, (len(joined) - size) // hop + 1)
        self._rest = joined[count * hop :]
        if not count:
            return np.zeros((0, self._settings.n_mels), np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(joined, size)[: count * hop : hop]
        power = np.square(np.abs(np.fft.rfft(windows * self._window)))  # [frames, bins]
        logarithm = np.log10(np.maximum(power @ self._filters, MIN_POWER))  # [frames, mels]
        frames: np.ndarray = ((np.maximum(logarithm, self._settings.min_log) + 4) / 4).astype(np.float32)
        return frames

    def finish(self) -> np.ndarray:
        """The frames that reach beyond the last sample, except the frame centred after it: float32 [frames,
        n_mels].
        """
        size, hop = self._settings.window_size, self._settings.hop_length
        return self.feed(np.zeros(max(0, size // 2 - hop), np.float32))


def compare_audio(found: np.ndarray, expected: np.ndarray, rate: int) -> dict[str, float]:
    """Seconds of both, and the log-mel distance in dB of the part that both have.

    Both are samples float32 [n] at `rate` Hz.
    """
    shared = min(len(found), len(expected))
    seconds = {"seconds": len(found) / rate, "seconds_expected": len(expected) / rate}
    if shared < COMPARED_WINDOW:
        return seconds
    difference = _log_mel(found[:shared], rate) - _log_mel(expected[:shared], rate)
    return seconds | {"log_mel_distance_db": float(np.sqrt(np.square(difference).mean(axis=0)).mean())}


def _log_mel(samples: np.ndarray, rate: int) -> np.ndarray:
    """Power spectrum under a Hann window, in decibels [mel bins, windows]."""
    from mistral_common.audio import mel_filter_bank

    filters = mel_filter_bank(COMPARED_WINDOW // 2 + 1, COMPARED_BINS, 0.0, rate / 2, rate)
    windows = np.lib.stride_tricks.sliding_window_view(samples, COMPARED_WINDOW)[::COMPARED_HOP]
    power = np.square(np.abs(np.fft.rfft(windows * np.hanning(COMPARED_WINDOW), axis=-1)))
    decibels: np.ndarray = 10 * np.log10(np.maximum(power @ filters, 1e-10))
    return decibels.T
