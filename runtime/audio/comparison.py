"""How far two pieces of audio are apart."""

import numpy as np

MEL_BINS, MEL_WINDOW, MEL_HOP = 80, 1024, 256


def compare_audio(found: np.ndarray, expected: np.ndarray, rate: int) -> dict[str, float]:
    """Seconds of both, and the log-mel distance in dB of the part that both have.

    Both are samples float32 [n] at `rate` Hz.
    """
    shared = min(len(found), len(expected))
    seconds = {"seconds": len(found) / rate, "seconds_expected": len(expected) / rate}
    if shared < MEL_WINDOW:
        return seconds
    difference = _log_mel(found[:shared], rate) - _log_mel(expected[:shared], rate)
    return seconds | {"log_mel_distance_db": float(np.sqrt(np.square(difference).mean(axis=0)).mean())}


def _log_mel(samples: np.ndarray, rate: int) -> np.ndarray:
    """Power spectrum under a Hann window, in decibels [mel bins, windows]."""
    from mistral_common.audio import mel_filter_bank

    filters = mel_filter_bank(MEL_WINDOW // 2 + 1, MEL_BINS, 0.0, rate / 2, rate)
    windows = np.lib.stride_tricks.sliding_window_view(samples, MEL_WINDOW)[::MEL_HOP]
    power = np.square(np.abs(np.fft.rfft(windows * np.hanning(MEL_WINDOW), axis=-1)))
    decibels: np.ndarray = 10 * np.log10(np.maximum(power @ filters, 1e-10))
    return decibels.T
