"""A gain of half of the channels. It is lost in a distance, where rounding moves every channel by more."""

from math import sqrt
from typing import NamedTuple

import numpy as np

# If the errors of channels have random signs, a sum of them exceeds so many of its standard deviations with a
# probability of at most 2 exp(-6^2 / 2) = 3e-8 (Hoeffding, for any sizes of the errors).
DEVIATIONS = 6.0


class Gain(NamedTuple):
    """By how much the channels of one half are larger, relative. `deviation` is its standard deviation if the
    errors of channels have random signs.
    """

    value: float
    deviation: float


def gains(found: np.ndarray, expected: np.ndarray, reference: np.ndarray) -> list[Gain]:
    """One for each half of the last axis: the factor between found - expected and a reference, by least
    squares. The reference has no rounding error that `expected` has too, which would look like a loss.

    Empty where shapes differ, where a value is not finite, or where there is one channel only.
    """
    if not found.shape == expected.shape == reference.shape or not np.ndim(found) or found.shape[-1] < 2:
        return []
    errors, exact = found.astype(np.float64) - expected, reference.astype(np.float64)
    if not (np.isfinite(errors).all() and np.isfinite(exact).all()):
        return []
    middle = exact.shape[-1] // 2
    return [_gain(errors[..., half], exact[..., half]) for half in (slice(middle), slice(middle, None))]


def _gain(errors: np.ndarray, reference: np.ndarray) -> Gain:
    power, products = float((reference**2).sum()), errors * reference
    if not power:
        return Gain(0.0, 0.0)
    return Gain(float(products.sum()) / power, sqrt(float((products**2).sum())) / power)
