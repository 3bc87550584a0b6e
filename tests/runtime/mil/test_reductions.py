"""Reductions, sorting and normalisation equal PyTorch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.runtime.mil_reference import GROWN, floats, normal, op, same

from voxport.runtime.mil.errors import MilError, UnsupportedError
from voxport.runtime.mil.ops import OPERATIONS as OPS

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_sum": torch.sum,
    "reduce_mean": torch.mean,
    "reduce_max": torch.amax,
    "reduce_min": torch.amin,
}


@pytest.mark.parametrize("name", REDUCTIONS)
@given(
    x=floats((2, 3, 4)),
    axes=st.sampled_from([[0], [1, 2], [-1], [0, -1], [0, 1, 2]]),
    keep=st.booleans(),
)
def test_reductions_equal_torch(name: str, x: np.ndarray, axes: list[int], keep: bool) -> None:
    expected = REDUCTIONS[name](torch.from_numpy(x), dim=axes, keepdim=keep)
    # each of up to 24 additions, in both libraries, is off by up to 2^-24 of the sum of magnitudes
    bar = 2 * 24 * 2**-24
    np.testing.assert_allclose(op(name)(x, axes, keep), expected, rtol=bar, atol=bar * np.abs(x).sum())
    assert op(name)(x, axes, keep).shape == tuple(expected.shape)


@given(
    x=hnp.arrays(np.int32, (2, 5), elements=st.integers(0, 3)),
    axis=st.sampled_from([0, 1, -1]),
    keep=st.booleans(),
)
def test_argmax_and_argmin_return_the_first_index(x: np.ndarray, axis: int, keep: bool) -> None:
    same(op("reduce_argmax")(x, axis, keep), np.argmax(x, axis, keepdims=keep))
    same(op("reduce_argmin")(x, axis, keep), np.argmin(x, axis, keepdims=keep))
    with pytest.raises(UnsupportedError, match="indices of type 'uint16'"):
        OPS["reduce_argmin"](x, axis, keep, "uint16")


@given(x=floats((2, 3, 4), st.floats(-1e4, 1e4, width=32)), axis=st.sampled_from([0, 1, 2, -1]))
def test_softmax_equals_torch(x: np.ndarray, axis: int) -> None:
    same(op("softmax")(x, axis), F.softmax(torch.from_numpy(x), axis))


@given(x=floats((2, 3, 4)), axis=st.sampled_from([0, 1, -1]))
def test_cumsum_equals_torch(x: np.ndarray, axis: int) -> None:
    # 3 additions, in both libraries, are off by up to 2^-24 of a sum of 4 numbers up to 20
    np.testing.assert_allclose(
        op("cumsum")(x, axis), torch.from_numpy(x).cumsum(axis), rtol=0, atol=2 * 3 * 2**-24 * 4 * 20
    )
    for changed in ({"exclusive": True}, {"reverse": True}):
        with pytest.raises(UnsupportedError, match="exclusive or reversed"):
            OPS["cumsum"](x, axis, **changed)


@given(
    x=hnp.arrays(np.float32, (3, 5), elements=st.integers(-3, 3).map(float)), axis=st.sampled_from([0, -1])
)
def test_the_largest_values_are_in_a_stable_order(x: np.ndarray, axis: int) -> None:
    values, places = torch.from_numpy(x).sort(dim=axis, descending=True, stable=True)
    found = op("topk")(x, 2, axis)
    same(found[0], values.narrow(axis, 0, 2))
    same(found[1], places.narrow(axis, 0, 2).int())
    for changed in ({"ascending": True}, {"sort": False}, {"return_indices": False}, {"k": -1}):
        with pytest.raises(UnsupportedError, match="a sorted topk with int32 indices"):
            OPS["topk"](x, **{"k": 2} | changed)


def test_sorting_nan_raises() -> None:
    with pytest.raises(MilError, match="sorting of NaN"):
        OPS["topk"](np.array([1, np.nan], np.float32))


@given(
    shape=hnp.array_shapes(min_dims=2, max_dims=4, min_side=2, max_side=4),
    epsilon=st.sampled_from([1e-5, 1e-3, 0.5]),
    seed=st.integers(0, 9),
)
def test_layer_norm_equals_torch(shape: tuple[int, ...], epsilon: float, seed: int) -> None:
    x, weight, bias = normal(*shape, seed=seed), normal(shape[-1], seed=1), normal(shape[-1], seed=2)
    exact, gamma, beta = map(torch.from_numpy, (x, weight, bias))
    expected = F.layer_norm(exact, shape[-1:], gamma, beta, epsilon)
    same(op("layer_norm")(x, [-1], weight, bias, epsilon), expected, GROWN)
    same(OPS["layer_norm"](x, [len(shape) - 1], weight, bias, epsilon), expected, GROWN)
    with pytest.raises(UnsupportedError, match="layer_norm over the axes"):
        OPS["layer_norm"](x, [0, 1, 2], weight, bias)
