"""The log-mel spectrogram of a whole recording, for the speaker encoder."""

import numpy as np

from voxport.bundle.errors import UsageError

WINDOW, HOP, BANDS, HIGHEST_HZ = 1024, 256, 128, 12_000.0  # samples, and bands up to this frequency
MIN_POWER, MIN_MEL = 1e-9, 1e-5
MIN_SAMPLES = 5 * HOP  # the encoder reflects four frames at the ends


def speaker_mel(samples: np.ndarray, rate: int) -> np.ndarray:
    """samples float32 [n] in [-1, 1] at `rate` Hz -> natural logarithms float32 [n // HOP, BANDS].

    Raises UsageError on fewer than `MIN_SAMPLES` samples.
    """
    from mistral_common.audio import mel_filter_bank

    if len(samples) < MIN_SAMPLES:
        raise UsageError(
            f"recording: {len(samples)} samples, expected at least {MIN_SAMPLES}; give seconds of speech"
        )
    filters = mel_filter_bank(WINDOW // 2 + 1, BANDS, 0.0, HIGHEST_HZ, rate)  # Slaney's, [bins, bands]
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    padded = np.pad(samples.astype(np.float64), (WINDOW - HOP) // 2, "reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    magnitude = np.sqrt(np.square(np.abs(np.fft.rfft(windows * window))) + MIN_POWER)
    mel: np.ndarray = np.log(np.maximum(magnitude @ filters, MIN_MEL)).astype(np.float32)
    return mel
