"""Operations that work value by value, with NumPy's broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops.arguments import Array, Operation
from runtime.mil.types import BY_NAME

_erf, _erfc = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def erf(x: Array) -> Array:
    return np.asarray(_erf(x.astype(np.float64))).astype(np.float32)


def real_div(x: Array, y: Array) -> Array:
    """Of integers the quotient is cut, as their type is kept."""
    return np.divide(x, y) if x.dtype.kind == "f" else np.trunc(_quotient(x, y)).astype(x.dtype)


def floor_div(x: Array, y: Array) -> Array:
    return np.floor_divide(x, y) if x.dtype.kind == "f" else np.floor(_quotient(x, y)).astype(x.dtype)


def mod(x: Array, y: Array) -> Array:
    """With the sign of the divisor."""
    if x.dtype.kind != "f":
        _quotient(x, y)
    return np.mod(x, y)


def _quotient(x: Array, y: Array) -> Array:
    if np.any(y == 0):
        raise MilError("divides an integer by zero")
    return np.true_divide(x, y)


def power(x: Array, y: Array) -> Array:
    if x.dtype.kind != "f" and np.any(y < 0):
        raise MilError("takes an integer to a negative power")
    return np.power(x, y) if x.dtype.kind == "f" else np.power(x.astype(np.float64), y).astype(x.dtype)


def inverse(x: Array, epsilon: float = 1e-4) -> Array:
    return np.float32(1) / (x + np.float32(epsilon))


def log(x: Array, epsilon: float = 1e-45) -> Array:
    return np.log(x + np.float32(epsilon))


def rsqrt(x: Array, epsilon: float = 1e-12) -> Array:
    return np.float32(1) / np.sqrt(x + np.float32(epsilon))


def sigmoid(x: Array) -> Array:
    return np.float32(1) / (1 + np.exp(-x))


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0)


def gelu(x: Array, mode: str = "EXACT") -> Array:
    """In double precision: where x is far below 0, what is multiplied nearly cancels."""
    wide = x.astype(np.float64)
    match mode:
        case "EXACT":
            share = np.asarray(_erfc(-wide / math.sqrt(2))).astype(np.float64) / 2
        case "TANH_APPROXIMATION":
            share = (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))) / 2
        case "SIGMOID_APPROXIMATION":
            share = 1 / (1 + np.exp(-1.702 * wide))
        case _:
            raise UnsupportedError(f"gelu mode {mode!r}")
    return (wide * share).astype(np.float32)


def elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, np.float32(alpha) * np.expm1(np.minimum(x, 0)))


def leaky_relu(x: Array, alpha: float) -> Array:
    return np.where(x >= 0, x, np.float32(alpha) * x)


def prelu(x: Array, alpha: Array) -> Array:
    """alpha [C] along the second axis."""
    return np.where(x >= 0, x, alpha.reshape(1, -1, *[1] * (x.ndim - 2)) * x)


def sigmoid_hard(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(np.float32(alpha) * x + np.float32(beta), 0, 1)


def clip(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(x, np.float32(alpha), np.float32(beta))


def cast(x: Array, dtype: str) -> Array:
    """Floats to integers are cut towards zero, and what the type cannot hold is an error; any value but zero is true."""
    if dtype not in BY_NAME or dtype == "string":
        raise UnsupportedError(f"cast to {dtype!r}")
    held = np.dtype(BY_NAME[dtype].held)
    if held == np.float16:
        return x.astype(np.float32)  # rounded like every half result
    if held.kind in "iu" and x.size and x.dtype.kind != "b":
        low, high = np.iinfo(held).min, np.iinfo(held).max
        if not (np.trunc(x.min()) >= low and np.trunc(x.max()) <= high):  # true for what is no number, too
            raise MilError(f"casts values from {x.min()} to {x.max()} to {dtype}")
    return x.astype(held)


def select(cond: Array, a: Array, b: Array) -> Array:
    return np.where(cond, a, b)


def _one(function: Callable[[Array], Any]) -> Operation:
    def operation(x: Array) -> Array:
        return np.asarray(function(x)).astype(x.dtype)

    return operation


def _two(function: Callable[[Array, Array], Any]) -> Operation:
    def operation(x: Array, y: Array) -> Array:
        return function(x, y)

    return operation


OPERATIONS: dict[str, Operation] = {
    "abs": _one(np.abs),
    "acos": _one(np.arccos),
    "asin": _one(np.arcsin),
    "atan": _one(np.arctan),
    "atanh": _one(np.arctanh),
    "ceil": _one(np.ceil),
    "cos": _one(np.cos),
    "cosh": _one(np.cosh),
    "exp": _one(np.exp),
    "exp2": _one(np.exp2),
    "floor": _one(np.floor),
    "identity": _one(lambda x: x),
    "logical_not": _one(np.logical_not),
    "relu": _one(lambda x: np.maximum(x, 0)),
    "relu6": _one(lambda x: np.clip(x, 0, 6)),
    "round": _one(np.rint),
    "sign": _one(np.sign),
    "silu": _one(lambda x: x * sigmoid(x)),
    "sin": _one(np.sin),
    "sinh": _one(np.sinh),
    "softsign": _one(lambda x: x / (1 + np.abs(x))),
    "sqrt": _one(np.sqrt),
    "square": _one(np.square),
    "tan": _one(np.tan),
    "tanh": _one(np.tanh),
    "add": _two(np.add),
    "sub": _two(np.subtract),
    "mul": _two(np.multiply),
    "maximum": _two(np.maximum),
    "minimum": _two(np.minimum),
    "equal": _two(np.equal),
    "not_equal": _two(np.not_equal),
    "greater": _two(np.greater),
    "greater_equal": _two(np.greater_equal),
    "less": _two(np.less),
    "less_equal": _two(np.less_equal),
    "logical_and": _two(np.logical_and),
    "logical_or": _two(np.logical_or),
    "logical_xor": _two(np.logical_xor),
    "erf": erf,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "real_div": real_div,
    "floor_div": floor_div,
    "mod": mod,
    "pow": power,
    "inverse": inverse,
    "log": log,
    "rsqrt": rsqrt,
    "gelu": gelu,
    "elu": elu,
    "leaky_relu": leaky_relu,
    "prelu": prelu,
    "sigmoid_hard": sigmoid_hard,
    "cast": cast,
    "select": select,
    "clip": clip,
}
