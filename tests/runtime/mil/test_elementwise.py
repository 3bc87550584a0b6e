"""Elementwise operations equal PyTorch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.runtime.mil_reference import EDGES, GROWN, floats, op, same, shapes

from voxport.runtime.mil.errors import MilError, UnsupportedError
from voxport.runtime.mil.ops import OPERATIONS as OPS

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
    "real_div": torch.div,
    "equal": torch.eq,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
}


@pytest.mark.parametrize("name", BINARY)
@given(shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4), data=st.data())
def test_binary_operations_equal_torch_and_broadcast(
    name: str, shapes: hnp.BroadcastableShapes, data: st.DataObject
) -> None:
    x, y = (data.draw(floats(shape, st.sampled_from([*EDGES, 2.5, -3.25]))) for shape in shapes.input_shapes)
    with np.errstate(all="ignore"):
        same(op(name)(x, y), BINARY[name](torch.from_numpy(x), torch.from_numpy(y)))


@pytest.mark.parametrize(
    "name",
    ["maximum", "minimum", "sub", "equal", "greater", "greater_equal", "less"],
)
@given(
    shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3),
    data=st.data(),
    kind=st.sampled_from([np.int32, np.int8, np.int16]),
)
def test_binary_operations_on_integers_equal_torch(
    name: str, shapes: hnp.BroadcastableShapes, data: st.DataObject, kind: type[np.signedinteger[Any]]
) -> None:
    x, y = (
        data.draw(hnp.arrays(kind, shape, elements=st.integers(-50, 50))) for shape in shapes.input_shapes
    )
    same(op(name)(x, y), BINARY[name](torch.from_numpy(x), torch.from_numpy(y)))


integers = st.integers(-9, 9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", torch.add),
        ("mul", torch.mul),
        ("real_div", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
        ("floor_div", lambda x, y: torch.div(x, y, rounding_mode="floor")),
    ],
)
@given(data=st.data(), shape=shapes)
def test_integer_arithmetic_keeps_the_type(
    name: str, expected: Callable[..., torch.Tensor], data: st.DataObject, shape: tuple[int, ...]
) -> None:
    x = data.draw(hnp.arrays(np.int32, shape, elements=integers))
    y = data.draw(hnp.arrays(np.int32, shape, elements=integers.filter(bool)))
    same(op(name)(x, y), expected(torch.from_numpy(x), torch.from_numpy(y)))


@pytest.mark.parametrize("name", ["real_div", "floor_div"])
def test_integer_division_by_zero_raises(name: str) -> None:
    with pytest.raises(MilError, match="division by zero"):
        op(name)(np.array([1], np.int32), np.array([0], np.int32))


@given(x=floats(), data=st.data())
def test_floor_division_of_floats_equals_torch(x: np.ndarray, data: st.DataObject) -> None:
    y = data.draw(floats(x.shape, st.floats(0.25, 8, width=32)))
    same(op("floor_div")(x, y), torch.floor_divide(torch.from_numpy(x), torch.from_numpy(y)))


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
    with pytest.raises(UnsupportedError, match="gelu mode"):
        OPS["gelu"](x, "TANH_APPROXIMATION")


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("int32", torch.int32), ("int16", torch.int16), ("uint16", torch.uint16), ("fp32", torch.float32)],
)
def test_cast_equals_torch(dtype: str, expected: torch.dtype) -> None:
    x = np.array([0.0, 0.9, 1.5, 2.5, 100.0], np.float32)
    same(op("cast")(x, dtype), torch.from_numpy(x).to(expected))
    if dtype != "uint16":
        same(op("cast")(-x, dtype), torch.from_numpy(-x).to(expected))
    with pytest.raises(UnsupportedError, match="cast to 'int8'; expected one of fp16"):
        OPS["cast"](x, "int8")
    with pytest.raises(MilError, match="outside the range"):
        OPS["cast"](np.array([np.nan], np.float32), "int32")


@given(cond=hnp.arrays(np.bool_, (3, 1)), a=floats((3, 4)), b=floats((4,)))
def test_select_equals_where(cond: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    same(
        op("select")(cond, a, b),
        torch.where(torch.from_numpy(cond), torch.from_numpy(a), torch.from_numpy(b)),
    )


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(4e4, "int16"), (1e20, "int32"), (-1.0, "uint16"), (float("nan"), "int32"), (float("inf"), "int16")],
)
def test_cast_of_a_number_outside_the_range_raises(value: float, dtype: str) -> None:
    with pytest.raises(MilError, match="outside the range"):
        OPS["cast"](np.array([value], np.float32), dtype)


def test_floor_division_rounds_the_exact_quotient() -> None:
    same(
        op("floor_div")(np.array([1.0, 7.0], np.float32), np.array([0.1, 2.0], np.float32)),
        torch.floor_divide(torch.tensor([1.0, 7.0]), torch.tensor([0.1, 2.0])),
    )
