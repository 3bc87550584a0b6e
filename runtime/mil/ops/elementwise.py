"""Elementwise operations, with NumPy's broadcasting."""

import math
from collections.abc import Callable

import numpy as np

from voxport.runtime.mil.errors import MilError, UnsupportedError, require
from voxport.runtime.mil.types import BY_NAME, Array, Operator

CASTS = ("fp16", "fp32", "int16", "int32", "uint16")
_erfc = np.frompyfunc(math.erfc, 1, 1)


def real_div(x: Array, y: Array) -> Array:
    """The quotient. For integers it is truncated towards zero."""
    return np.asarray(x / y if x.dtype.kind == "f" else np.trunc(_quotient(x, y)).astype(x.dtype))


def floor_div(x: Array, y: Array) -> Array:
    return np.asarray(x // y if x.dtype.kind == "f" else np.floor(_quotient(x, y)).astype(x.dtype))


def _quotient(x: Array, y: Array) -> Array:
    require(np.all(y != 0), "integer division by zero")
    return np.asarray(np.true_divide(x, y))


def sigmoid(x: Array) -> Array:
    return np.asarray(np.float32(1) / (1 + np.exp(-x)))


def gelu(x: Array, mode: str = "EXACT") -> Array:
    """Computed in float64, because the factor of x loses its significant digits for negative x."""
    require(mode == "EXACT", f"gelu mode {mode!r}", UnsupportedError)
    wide = x.astype(np.float64)
    factor = np.asarray(_erfc(-wide / math.sqrt(2))).astype(np.float64) / 2
    return (wide * factor).astype(np.float32)


def elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, np.float32(alpha) * np.expm1(np.minimum(x, 0)))


def clip(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(x, np.float32(alpha), np.float32(beta))


def cast(x: Array, dtype: str) -> Array:
    """Truncates floats to integers.

    Raises MilError for a number outside the range of an integer type.
    """
    require(dtype in CASTS, f"cast to {dtype!r}; expected one of {', '.join(CASTS)}", UnsupportedError)
    target = np.dtype(BY_NAME[dtype].dtype)
    if target == np.float16:
        return x.astype(np.float32)  # the executor rounds the result, like all results of type float16
    if target.kind in "iu" and x.size and x.dtype.kind != "b":
        limits = np.iinfo(target.name)
        in_range = np.trunc(x.min()) >= limits.min and np.trunc(x.max()) <= limits.max  # False for NaN
        if not in_range:
            raise MilError(f"values from {x.min()} to {x.max()} are outside the range of {dtype}")
    return x.astype(target)


def select(cond: Array, a: Array, b: Array) -> Array:
    return np.where(cond, a, b)


def _unary(function: Callable[[Array], Array]) -> Operator:
    def operation(x: Array) -> Array:
        return np.asarray(function(x)).astype(x.dtype)

    return operation


def _with_epsilon(function: Callable[[Array], Array], default: float) -> Operator:
    def operation(x: Array, epsilon: float = default) -> Array:
        return np.asarray(function(x + np.float32(epsilon)))

    return operation


def _binary(function: Callable[[Array, Array], Array]) -> Operator:
    def operation(x: Array, y: Array) -> Array:
        return np.asarray(function(x, y))

    return operation


OPERATIONS: dict[str, Operator] = {
    "abs": _unary(np.abs),
    "logical_not": _unary(np.logical_not),
    "relu": _unary(lambda x: np.maximum(x, 0)),
    "round": _unary(np.rint),
    "silu": _unary(lambda x: x * sigmoid(x)),
    "sin": _unary(np.sin),
    "sqrt": _unary(np.sqrt),
    "tanh": _unary(np.tanh),
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "maximum": _binary(np.maximum),
    "minimum": _binary(np.minimum),
    "equal": _binary(np.equal),
    "greater": _binary(np.greater),
    "greater_equal": _binary(np.greater_equal),
    "less": _binary(np.less),
    "logical_and": _binary(np.logical_and),
    "logical_or": _binary(np.logical_or),
    "sigmoid": sigmoid,
    "real_div": real_div,
    "floor_div": floor_div,
    "inverse": _with_epsilon(lambda x: np.float32(1) / x, 1e-4),
    "rsqrt": _with_epsilon(lambda x: np.float32(1) / np.sqrt(x), 1e-12),
    "gelu": gelu,
    "elu": elu,
    "cast": cast,
    "select": select,
    "clip": clip,
}
