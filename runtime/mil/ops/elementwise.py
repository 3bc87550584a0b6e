"""Elementwise operations, with NumPy's broadcasting."""

import math
from collections.abc import Callable

import numpy as np

from runtime.mil.errors import MilError, UnsupportedError, require
from runtime.mil.types import BY_NAME, Array, Operator

_erf, _erfc = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def erf(x: Array) -> Array:
    return np.asarray(_erf(x.astype(np.float64))).astype(np.float32)


def real_div(x: Array, y: Array) -> Array:
    """The quotient. For integers it is truncated towards zero."""
    return np.asarray(x / y if x.dtype.kind == "f" else np.trunc(_quotient(x, y)).astype(x.dtype))


def floor_div(x: Array, y: Array) -> Array:
    return np.asarray(x // y if x.dtype.kind == "f" else np.floor(_quotient(x, y)).astype(x.dtype))


def mod(x: Array, y: Array) -> Array:
    """The remainder, with the sign of the divisor."""
    if x.dtype.kind != "f":
        _quotient(x, y)
    return np.asarray(np.mod(x, y))


def _quotient(x: Array, y: Array) -> Array:
    require(np.all(y != 0), "integer division by zero")
    return np.asarray(np.true_divide(x, y))


def power(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(np.power(x, y))
    require(np.all(y >= 0), "an integer with a negative power")
    return np.asarray(np.power(x.astype(np.float64), y).astype(x.dtype))


def sigmoid(x: Array) -> Array:
    return np.asarray(np.float32(1) / (1 + np.exp(-x)))


def softplus(x: Array) -> Array:
    return np.asarray(np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0))


def gelu(x: Array, mode: str = "EXACT") -> Array:
    """Computed in float64, because the factor of x loses its significant digits for negative x."""
    wide = x.astype(np.float64)
    match mode:
        case "EXACT":
            factor = np.asarray(_erfc(-wide / math.sqrt(2))).astype(np.float64) / 2
        case "TANH_APPROXIMATION":
            factor = (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))) / 2
        case "SIGMOID_APPROXIMATION":
            factor = 1 / (1 + np.exp(-1.702 * wide))
        case _:
            raise UnsupportedError(f"gelu mode {mode!r}")
    return (wide * factor).astype(np.float32)


def elu(x: Array, alpha: float) -> Array:
    return np.where(x > 0, x, np.float32(alpha) * np.expm1(np.minimum(x, 0)))


def leaky_relu(x: Array, alpha: float) -> Array:
    return np.where(x >= 0, x, np.float32(alpha) * x)


def prelu(x: Array, alpha: Array) -> Array:
    """alpha [C] applies along the second axis."""
    return np.where(x >= 0, x, alpha.reshape(1, -1, *[1] * (x.ndim - 2)) * x)


def sigmoid_hard(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(np.float32(alpha) * x + np.float32(beta), 0, 1)


def clip(x: Array, alpha: float, beta: float) -> Array:
    return np.clip(x, np.float32(alpha), np.float32(beta))


def cast(x: Array, dtype: str) -> Array:
    """Truncates floats to integers. Any nonzero value becomes true.

    Raises MilError for a number outside the range of an integer type.
    """
    require(dtype in BY_NAME and dtype != "string", f"cast to {dtype!r}", UnsupportedError)
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
    "acos": _unary(np.arccos),
    "asin": _unary(np.arcsin),
    "atan": _unary(np.arctan),
    "atanh": _unary(np.arctanh),
    "ceil": _unary(np.ceil),
    "cos": _unary(np.cos),
    "cosh": _unary(np.cosh),
    "exp": _unary(np.exp),
    "exp2": _unary(np.exp2),
    "floor": _unary(np.floor),
    "identity": _unary(lambda x: x),
    "logical_not": _unary(np.logical_not),
    "relu": _unary(lambda x: np.maximum(x, 0)),
    "relu6": _unary(lambda x: np.clip(x, 0, 6)),
    "round": _unary(np.rint),
    "sign": _unary(np.sign),
    "silu": _unary(lambda x: x * sigmoid(x)),
    "sin": _unary(np.sin),
    "sinh": _unary(np.sinh),
    "softsign": _unary(lambda x: x / (1 + np.abs(x))),
    "sqrt": _unary(np.sqrt),
    "square": _unary(np.square),
    "tan": _unary(np.tan),
    "tanh": _unary(np.tanh),
    "add": _binary(np.add),
    "sub": _binary(np.subtract),
    "mul": _binary(np.multiply),
    "maximum": _binary(np.maximum),
    "minimum": _binary(np.minimum),
    "equal": _binary(np.equal),
    "not_equal": _binary(np.not_equal),
    "greater": _binary(np.greater),
    "greater_equal": _binary(np.greater_equal),
    "less": _binary(np.less),
    "less_equal": _binary(np.less_equal),
    "logical_and": _binary(np.logical_and),
    "logical_or": _binary(np.logical_or),
    "logical_xor": _binary(np.logical_xor),
    "erf": erf,
    "sigmoid": sigmoid,
    "softplus": softplus,
    "real_div": real_div,
    "floor_div": floor_div,
    "mod": mod,
    "pow": power,
    "inverse": _with_epsilon(lambda x: np.float32(1) / x, 1e-4),
    "log": _with_epsilon(np.log, 1e-45),
    "rsqrt": _with_epsilon(lambda x: np.float32(1) / np.sqrt(x), 1e-12),
    "gelu": gelu,
    "elu": elu,
    "leaky_relu": leaky_relu,
    "prelu": prelu,
    "sigmoid_hard": sigmoid_hard,
    "cast": cast,
    "select": select,
    "clip": clip,
}
