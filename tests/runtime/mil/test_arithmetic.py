"""Operations that compute equal PyTorch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.runtime.mil_reference import EDGES, GROWN, floats, normal, op, same

from voxport.runtime.mil.types import MilError, UnsupportedError

UNARY: dict[str, Callable[..., Any]] = {
    "abs": torch.abs,
    "relu": torch.relu,
    "round": torch.round,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "sin": torch.sin,
    "sqrt": torch.sqrt,
    "tanh": torch.tanh,
}


@pytest.mark.parametrize("name", UNARY)
@given(x=floats())
def test_unary_operations_equal_torch(name: str, x: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        same(op(name)(x), UNARY[name](torch.from_numpy(x)))


@pytest.mark.parametrize("name", UNARY)
def test_unary_operations_equal_torch_at_extreme_values(name: str) -> None:
    x = np.array(EDGES, np.float32)
    if name == "silu":
        x = x[~np.isinf(x)]  # 0 times infinity differs between libraries
    if name == "sin":
        x = x[np.abs(x) < 1e4]  # the argument reduction of larger values differs between libraries
    with np.errstate(all="ignore"):
        same(op(name)(x), UNARY[name](torch.from_numpy(x)), close=GROWN)


BINARY: dict[str, Callable[..., Any]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "equal": torch.eq,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
}
BROADCAST = hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4)


@pytest.mark.parametrize("name", [*BINARY, "real_div"])
@given(shapes=BROADCAST, data=st.data())
def test_binary_operations_equal_torch_and_broadcast(
    name: str, shapes: hnp.BroadcastableShapes, data: st.DataObject
) -> None:
    x, y = (data.draw(floats(shape, st.sampled_from([*EDGES, 2.5, -3.25]))) for shape in shapes.input_shapes)
    with np.errstate(all="ignore"):
        same(op(name)(x, y), (BINARY | {"real_div": torch.div})[name](*map(torch.from_numpy, (x, y))))


DIVISIONS = {"real_div": "trunc", "floor_div": "floor"}  # rounding of integer quotients


@pytest.mark.parametrize("name", [*BINARY, *DIVISIONS])
@given(shapes=BROADCAST, data=st.data(), kind=st.sampled_from([np.int32, np.int16, np.int8]))
def test_operations_on_integers_keep_the_type(
    name: str, shapes: hnp.BroadcastableShapes, data: st.DataObject, kind: type[np.signedinteger[Any]]
) -> None:
    numbers = st.integers(-9, 9)
    elements = (numbers, numbers.filter(bool) if name in DIVISIONS else numbers)
    pairs = zip(shapes.input_shapes, elements, strict=True)
    x, y = (data.draw(hnp.arrays(kind, shape, elements=numbers)) for shape, numbers in pairs)
    exact = torch.from_numpy(x), torch.from_numpy(y)
    divided = name in DIVISIONS and torch.div(*exact, rounding_mode=DIVISIONS[name])
    same(op(name)(x, y), divided if name in DIVISIONS else BINARY[name](*exact))


@pytest.mark.parametrize("name", DIVISIONS)
def test_integer_division_by_zero_raises(name: str) -> None:
    with pytest.raises(MilError, match="division by zero"):
        op(name)(np.array([1], np.int32), np.array([0], np.int32))


@given(x=floats(), data=st.data())
def test_floor_division_of_floats_rounds_the_exact_quotient(x: np.ndarray, data: st.DataObject) -> None:
    y = data.draw(floats(x.shape, st.floats(0.25, 8, width=32)))
    for top, below in ((x, y), (np.array([1.0, 7.0], np.float32), np.array([0.1, 2.0], np.float32))):
        expected = torch.floor_divide(torch.from_numpy(top), torch.from_numpy(below))
        same(op("floor_div")(top, below), expected)


LOGIC = {"logical_and": torch.logical_and, "logical_or": torch.logical_or}


@pytest.mark.parametrize("name", LOGIC)
@given(x=hnp.arrays(np.bool_, (2, 3)), y=hnp.arrays(np.bool_, (3,)))
def test_logical_operations_equal_torch(name: str, x: np.ndarray, y: np.ndarray) -> None:
    same(op(name)(x, y), LOGIC[name](torch.from_numpy(x), torch.from_numpy(y)))
    same(op("logical_not")(x), ~torch.from_numpy(x))


@given(x=floats(), epsilon=st.sampled_from([1e-12, 1e-4, 0.5]))
def test_epsilon_is_added_before_the_function(x: np.ndarray, epsilon: float) -> None:
    x, exact = np.abs(x), torch.from_numpy(np.abs(x))
    with np.errstate(all="ignore"):
        same(op("rsqrt")(x, epsilon), torch.rsqrt(exact + epsilon))
        same(op("inverse")(x, epsilon), 1 / (exact + epsilon))


@given(x=floats())
def test_activations_equal_torch(x: np.ndarray) -> None:
    exact = torch.from_numpy(x)
    wide = exact.double()  # the reference computes 1 + erf(x), which cancels for negative x
    same(op("gelu")(x), F.gelu(wide).float(), floor=1e-14)
    same(op("elu")(x, 0.7), F.elu(exact, 0.7))
    same(op("clip")(x, -1.5, 2.0), exact.clamp(-1.5, 2.0))


@pytest.mark.parametrize("dtype", ["int32", "int16", "uint16", "fp32"])
def test_cast_equals_torch(dtype: str) -> None:
    x = np.array([0.0, 0.9, 1.5, 2.5, 100.0], np.float32)
    for values in (x,) if dtype == "uint16" else (x, -x):
        expected = torch.from_numpy(values).to(getattr(torch, dtype.replace("fp32", "float32")))
        same(op("cast")(values, dtype), expected)
    with pytest.raises(UnsupportedError, match="cast to 'int8'; expected one of fp16"):
        op("cast")(x, "int8")


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(4e4, "int16"), (1e20, "int32"), (-1.0, "uint16"), (float("nan"), "int32"), (float("inf"), "int16")],
)
def test_cast_of_a_number_outside_the_range_raises(value: float, dtype: str) -> None:
    with pytest.raises(MilError, match="outside the range"):
        op("cast")(np.array([value], np.float32), dtype)


@given(cond=hnp.arrays(np.bool_, (3, 1)), a=floats((3, 4)), b=floats((4,)))
def test_select_equals_where(cond: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    same(op("select")(cond, a, b), torch.where(*map(torch.from_numpy, (cond, a, b))))


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


@given(x=floats((2, 3, 4), st.floats(-1e4, 1e4, width=32)), axis=st.sampled_from([0, 1, 2, -1]))
def test_softmax_equals_torch(x: np.ndarray, axis: int) -> None:
    same(op("softmax")(x, axis), F.softmax(torch.from_numpy(x), axis))


@given(x=floats((2, 3, 4)), axis=st.sampled_from([0, 1, -1]))
def test_cumsum_equals_torch(x: np.ndarray, axis: int) -> None:
    # 3 additions, in both libraries, are off by up to 2^-24 of a sum of 4 numbers up to 20
    np.testing.assert_allclose(
        op("cumsum")(x, axis), torch.from_numpy(x).cumsum(axis), rtol=0, atol=2 * 3 * 2**-24 * 4 * 20
    )


@given(
    x=hnp.arrays(np.float32, (3, 5), elements=st.integers(-3, 3).map(float)), axis=st.sampled_from([0, -1])
)
def test_the_largest_values_are_in_a_stable_order(x: np.ndarray, axis: int) -> None:
    values, places = torch.from_numpy(x).sort(dim=axis, descending=True, stable=True)
    found = op("topk")(x, 2, axis)
    same(found[0], values.narrow(axis, 0, 2))
    same(found[1], places.narrow(axis, 0, 2).int())
    with pytest.raises(UnsupportedError, match="topk of -1 values"):
        op("topk")(x, -1)
    with pytest.raises(MilError, match="sorting of NaN"):
        op("topk")(np.array([1, np.nan], np.float32))


@given(
    shape=hnp.array_shapes(min_dims=2, max_dims=4, min_side=2, max_side=4),
    epsilon=st.sampled_from([1e-5, 1e-3, 0.5]),
    seed=st.integers(0, 9),
)
def test_layer_norm_equals_torch(shape: tuple[int, ...], epsilon: float, seed: int) -> None:
    x, weight, bias = normal(*shape, seed=seed), normal(shape[-1], seed=1), normal(shape[-1], seed=2)
    exact, gamma, beta = map(torch.from_numpy, (x, weight, bias))
    expected = F.layer_norm(exact, shape[-1:], gamma, beta, epsilon)
    for axis in (-1, len(shape) - 1):
        same(op("layer_norm")(x, [axis], weight, bias, epsilon), expected, GROWN)
    with pytest.raises(UnsupportedError, match="layer_norm over the axes"):
        op("layer_norm")(x, [0, 1, 2], weight, bias)


sizes = st.integers(1, 5)


def near(found: np.ndarray, expected: torch.Tensor) -> None:
    """The tolerance is for sums of at most 5 products of numbers up to 20: 5 * 400 * 2^-24 = 1.2e-4."""
    assert found.shape == tuple(expected.shape) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1.2e-4)


@given(lead=hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=3), data=st.data())
def test_linear_equals_torch(lead: tuple[int, ...], data: st.DataObject) -> None:
    columns, rows = data.draw(sizes), data.draw(sizes)
    arrays = [data.draw(floats(shape)) for shape in ((*lead, columns), (rows, columns), (rows,))]
    exact = [torch.from_numpy(array) for array in arrays]
    near(op("linear")(*arrays), F.linear(*exact))
    near(op("linear")(*arrays[:2]), F.linear(*exact[:2]))


@given(
    lead=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, max_side=3),
    data=st.data(),
    flip=st.booleans(),
)
def test_matmul_broadcasts_and_transposes(
    lead: hnp.BroadcastableShapes, data: st.DataObject, flip: bool
) -> None:
    m, k, n = (data.draw(sizes) for _ in range(3))
    x = data.draw(floats((*lead.input_shapes[0], m, k)))
    y = data.draw(floats((*lead.input_shapes[1], *((n, k) if flip else (k, n)))))
    right = torch.from_numpy(y)
    near(op("matmul")(x, y, flip), torch.from_numpy(x) @ (right.mT if flip else right))


@given(
    batch=hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=3),
    data=st.data(),
    masked=st.booleans(),
)
def test_attention_equals_torch(batch: tuple[int, ...], data: st.DataObject, masked: bool) -> None:
    queries, keys, width, values = (data.draw(sizes) for _ in range(4))
    shapes = (queries, width), (keys, width), (keys, values)
    arrays = [normal(*batch, *shape, seed=seed) for seed, shape in enumerate(shapes)]
    mask = np.arange(keys) <= np.arange(queries)[:, None] if masked else None
    q, k, v = map(torch.from_numpy, arrays)
    expected = F.scaled_dot_product_attention(q, k, v, None if mask is None else torch.from_numpy(mask))
    same(op("scaled_dot_product_attention")(*arrays, mask), expected, GROWN)
    with pytest.raises(UnsupportedError, match="attn_mask of float32"):
        op("scaled_dot_product_attention")(*arrays, normal(queries, keys))


@given(
    groups=st.sampled_from([1, 2]),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    width=st.integers(1, 3),
    axes=st.sampled_from([1, 2]),
    biased=st.booleans(),
)
def test_convolutions_equal_torch(
    groups: int, stride: int, dilation: int, width: int, axes: int, biased: bool
) -> None:
    sizes, kernel = (6, 7)[:axes], (width, 2)[:axes]
    x, weight, bias = normal(2, 4, *sizes), normal(6, 4 // groups, *kernel, seed=1), normal(6, seed=2)
    expected = (F.conv1d, F.conv2d)[axes - 1](
        torch.from_numpy(x),
        torch.from_numpy(weight),
        torch.from_numpy(bias) if biased else None,
        stride=stride,
        dilation=dilation,
        groups=groups,
    )
    found = op("conv")(x, weight, bias if biased else None, axes * [stride], None, axes * [dilation], groups)
    same(found, expected, GROWN)


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [((1, 2, 7), {"groups": 3}, "2 channels in 3 groups"), ((1, 2, 7, 7, 7), {}, "conv over 3 axes")],
)
def test_convolutions_with_invalid_arguments_raise(
    shape: tuple[int, ...], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(MilError, match=message):
        op("conv")(normal(*shape), normal(3, 2, *[3] * (len(shape) - 2)), **arguments)
