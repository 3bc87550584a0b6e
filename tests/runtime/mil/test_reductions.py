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

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops import OPERATIONS as OPS

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_sum": torch.sum,
    "reduce_mean": torch.mean,
    "reduce_max": torch.amax,
    "reduce_min": torch.amin,
    "reduce_l1_norm": lambda x, dim, keepdim: x.abs().sum(dim, keepdim),
    "reduce_l2_norm": lambda x, dim, keepdim: torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim),
    "reduce_sum_square": lambda x, dim, keepdim: x.square().sum(dim, keepdim),
    "reduce_log_sum_exp": torch.logsumexp,
}


@pytest.mark.parametrize("name", REDUCTIONS)
@given(
    x=floats((2, 3, 4)),
    axes=st.sampled_from([[0], [1, 2], [-1], [0, -1], [0, 1, 2], None]),
    keep=st.booleans(),
)
def test_reductions_equal_torch(name: str, x: np.ndarray, axes: list[int] | None, keep: bool) -> None:
    expected = REDUCTIONS[name](torch.from_numpy(x), dim=axes or [0, 1, 2], keepdim=keep)
    # each of up to 24 additions, in both libraries, is off by up to 2^-24 of the sum of magnitudes
    bar = 2 * 24 * 2**-24
    np.testing.assert_allclose(op(name)(x, axes, keep), expected, rtol=bar, atol=bar * np.abs(x).sum())
    assert op(name)(x, axes, keep).shape == tuple(expected.shape)


def test_products_and_infinite_sums_equal_torch() -> None:
    x = normal(3, 4)
    same(op("reduce_prod")(x, [1]), torch.from_numpy(x).prod(1))
    x = np.array([[-np.inf, -np.inf], [0, np.inf]], np.float32)
    with np.errstate(all="ignore"):
        same(op("reduce_log_sum_exp")(x, [1]), torch.logsumexp(torch.from_numpy(x), 1))


@given(
    x=hnp.arrays(np.int32, (2, 5), elements=st.integers(0, 3)),
    axis=st.sampled_from([0, 1, -1]),
    keep=st.booleans(),
)
def test_argmax_and_argmin_return_the_first_index(x: np.ndarray, axis: int, keep: bool) -> None:
    same(op("reduce_argmax")(x, axis, keep), np.argmax(x, axis, keepdims=keep))
    same(op("reduce_argmin")(x, axis, keep), np.argmin(x, axis, keepdims=keep))
    assert OPS["reduce_argmax"](x, axis, keep, "uint16").dtype == np.uint16
    with pytest.raises(UnsupportedError, match="int7"):
        OPS["reduce_argmin"](x, axis, keep, "int7")


@given(x=floats((2, 3, 4), st.floats(-1e4, 1e4, width=32)), axis=st.sampled_from([0, 1, 2, -1]))
def test_softmax_equals_torch(x: np.ndarray, axis: int) -> None:
    same(op("softmax")(x, axis), F.softmax(torch.from_numpy(x), axis))


@given(x=floats((2, 3, 4)), reverse=st.booleans(), exclusive=st.booleans(), axis=st.sampled_from([0, 1, -1]))
def test_cumsum_equals_torch(x: np.ndarray, reverse: bool, exclusive: bool, axis: int) -> None:
    flipped = torch.from_numpy(x).flip(axis) if reverse else torch.from_numpy(x)
    total = flipped.cumsum(axis)
    if exclusive:
        total = torch.cat(
            (torch.zeros_like(total.narrow(axis, 0, 1)), total.narrow(axis, 0, total.shape[axis] - 1)), axis
        )
    # 3 additions, in both libraries, are off by up to 2^-24 of a sum of 4 numbers up to 20
    np.testing.assert_allclose(
        op("cumsum")(x, axis, exclusive, reverse),
        total.flip(axis) if reverse else total,
        rtol=0,
        atol=2 * 3 * 2**-24 * 4 * 20,
    )


@given(
    x=hnp.arrays(np.float32, (3, 5), elements=st.integers(-3, 3).map(float)),
    axis=st.sampled_from([0, 1, -1]),
    ascending=st.booleans(),
)
def test_sorting_is_stable(x: np.ndarray, axis: int, ascending: bool) -> None:
    values, places = torch.from_numpy(x).sort(dim=axis, descending=not ascending, stable=True)
    same(op("argsort")(x, axis, ascending), places.int())
    found = op("topk")(x, 2, axis, ascending)
    same(found[0], values.narrow(axis, 0, 2))
    same(found[1], places.narrow(axis, 0, 2).int())
    same(OPS["topk"](x, -1, axis, ascending, return_indices=False)[0], values)
    same(
        np.sort(OPS["topk"](x, 2, axis, ascending, sort=False)[0], axis),
        values.narrow(axis, 0, 2).sort(axis).values,
    )


def test_sorting_nan_raises() -> None:
    with pytest.raises(MilError, match="sorting of NaN"):
        OPS["argsort"](np.array([1, np.nan], np.float32))


@given(
    shape=hnp.array_shapes(min_dims=3, max_dims=4, min_side=2, max_side=4),
    epsilon=st.sampled_from([1e-5, 1e-3, 0.5]),
    affine=st.booleans(),
    seed=st.integers(0, 9),
)
def test_norms_equal_torch(shape: tuple[int, ...], epsilon: float, affine: bool, seed: int) -> None:
    x, channels = normal(*shape, seed=seed), shape[1]
    exact, gamma, beta = (
        torch.from_numpy(x),
        normal(channels, seed=1) if affine else None,
        normal(channels, seed=2) if affine else None,
    )
    g, b = (None if array is None else torch.from_numpy(array) for array in (gamma, beta))
    mean, variance = normal(channels, seed=3), np.abs(normal(channels, seed=4))
    expected = F.batch_norm(exact, torch.from_numpy(mean), torch.from_numpy(variance), g, b, eps=epsilon)
    same(op("batch_norm")(x, mean, variance, gamma, beta, epsilon), expected, GROWN)
    same(
        op("instance_norm")(x, gamma, beta, epsilon),
        F.instance_norm(exact, weight=g, bias=b, eps=epsilon),
        GROWN,
    )
    tail = shape[2:]
    weight, bias = (normal(*tail, seed=5), normal(*tail, seed=6)) if affine else (None, None)
    w, c = (None if array is None else torch.from_numpy(array) for array in (weight, bias))
    same(
        op("layer_norm")(x, list(range(2, len(shape))), weight, bias, epsilon),
        F.layer_norm(exact, tail, w, c, epsilon),
        GROWN,
    )
    same(op("l2_norm")(x, epsilon), exact / (exact.square().sum((-3, -2, -1), keepdim=True) + epsilon).sqrt())


def test_norms_have_the_defaults_of_torch() -> None:
    x, mean, variance = normal(2, 3, 4, 5), normal(3, seed=2), np.abs(normal(3, seed=3))
    exact = torch.from_numpy(x)
    same(
        OPS["batch_norm"](x, mean, variance),
        F.batch_norm(exact, torch.from_numpy(mean), torch.from_numpy(variance)),
        GROWN,
    )
    same(OPS["layer_norm"](x), F.layer_norm(exact, x.shape), GROWN)
