"""Sample rate conversion, whole and in blocks."""

import numpy as np

QUALITY = "HQ"  # the setting of soxr in the published front end


def resample(samples: np.ndarray, rate: int, new_rate: int) -> np.ndarray:
    """samples float32 [n] of `rate` Hz -> [m] of `new_rate` Hz, clipped to [-1, 1] because the filter
    overshoots.
    """
    if rate == new_rate:
        return samples
    import soxr

    resampled: np.ndarray = soxr.resample(samples, rate, new_rate)
    return np.clip(resampled, -1.0, 1.0)


class Resampler:
    """Converts blocks of a stream. The result does not depend on the sizes of the blocks."""

    def __init__(self, rate: int, new_rate: int):
        self._stream = None
        if rate != new_rate:
            import soxr

            self._stream = soxr.ResampleStream(rate, new_rate, 1, "float32", QUALITY)

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """samples float32 [n] -> the samples that became complete, float32 [m]."""
        return samples if self._stream is None else self._stream.resample_chunk(samples)

    def finish(self) -> np.ndarray:
        """The remaining samples after the last block, float32 [m]."""
        end = np.zeros(0, np.float32)
        return end if self._stream is None else self._stream.resample_chunk(end, last=True)
