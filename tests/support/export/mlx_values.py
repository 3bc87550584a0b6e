"""Values of MLX, compared with those of the official packages."""

import mlx.core as mx
import numpy as np

BAR = 1e-4  # of the largest value


def assert_near(found: mx.array, expected: np.ndarray) -> None:
    values = np.array(found.astype(mx.float32))
    assert values.shape == expected.shape
    assert np.abs(values - expected).max() < BAR * max(1, np.abs(expected).max())
