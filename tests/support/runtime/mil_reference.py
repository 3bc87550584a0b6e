"""Hypothesis strategies and the comparison that the tests of operations share."""

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from voxport.runtime.mil.operations import OPERATIONS

# 2^-18. Float32 rounds to 2^-24; two libraries differ by more in a function or in a sum of a few dozen terms.
CLOSE = 4e-6
# A norm divides 4 roundings of values and means, each of u = 2^-24, by a deviation of 1/59 of the values:
# 4 * 59 * u = 1.4e-5.
GROWN = 1.5e-5
EDGES = [0.0, -0.0, 1.0, -1.0, 1e-7, -3e4, 65504.0, 6.1e-5, float("inf"), float("-inf"), float("nan")]
numbers = st.floats(-20, 20, width=32)
shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5)
op = OPERATIONS.__getitem__


def floats(
    shape: Any = shapes, elements: st.SearchStrategy[float] = numbers
) -> st.SearchStrategy[np.ndarray]:
    return hnp.arrays(np.float32, shape, elements=elements)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def same(found: Any, expected: Any, close: float = CLOSE, floor: float = 1e-30) -> None:
    """Asserts equal shapes and dtype kinds, equal integers, and floats within `close` relative tolerance."""
    expected = expected.numpy() if isinstance(expected, torch.Tensor) else np.asarray(expected)
    found = np.asarray(found)
    assert found.shape == expected.shape and found.dtype.kind == expected.dtype.kind, (
        f"{found.dtype}{found.shape}, expected {expected.dtype}{expected.shape}"
    )
    if found.dtype.kind == "f":
        scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
        np.testing.assert_allclose(found, expected, rtol=close, atol=close * min(scale, 1) + floor)
    else:
        np.testing.assert_array_equal(found, expected)
