"""Operations that compute: elementwise with NumPy's broadcasting, over axes, and products.

Sums are accumulated in float32.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from voxport.runtime.mil.types import (
    BY_NAME,
    Array,
    Arrays,
    Ints,
    MilError,
    Operator,
    UnsupportedError,
    require,
)

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


def gelu(x: Array) -> Array:
    """Computed in float64, because the factor of x loses its significant digits for negative x."""
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


def _reduction(function: Callable[..., Any]) -> Operator:
    def operation(x: Array, axes: Ints, keep_dims: bool = False) -> Array:
        return np.asarray(function(x, axis=tuple(axes), keepdims=keep_dims)).astype(x.dtype)

    return operation


def _arg_reduction(function: Callable[..., Any]) -> Operator:
    def operation(x: Array, axis: int = -1, keep_dims: bool = False) -> Array:
        return np.asarray(function(x, axis=axis, keepdims=keep_dims)).astype(np.int32)

    return operation


def softmax(x: Array, axis: int = -1) -> Array:
    exponents = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(exponents / np.sum(exponents, axis=axis, keepdims=True))


def layer_norm(x: Array, axes: Ints, gamma: Array, beta: Array, epsilon: float = 1e-5) -> Array:
    """Normalises over the last axis. gamma and beta have its size."""
    require(axes in ([-1], [x.ndim - 1]), f"layer_norm over the axes {axes}", UnsupportedError)
    centred = x - np.mean(x, axis=-1, keepdims=True)
    deviation = np.sqrt(np.mean(np.square(centred), axis=-1, keepdims=True) + epsilon)
    return np.asarray(centred / deviation * gamma.reshape(x.shape[-1:]) + beta.reshape(x.shape[-1:]))


def cumsum(x: Array, axis: int = 0) -> Array:
    return np.cumsum(x, axis=axis, dtype=x.dtype)


def topk(x: Array, k: int = 1, axis: int = -1) -> Arrays:
    """The k largest values and their indices. Equal values are in the order of their indices."""
    require(x.dtype.kind != "f" or not np.isnan(x).any(), "sorting of NaN")
    require(k >= 1, f"topk of {k} values", UnsupportedError)
    order = np.argsort(-x.astype(np.float64), axis=axis, kind="stable")
    indices = np.take(order, np.arange(k), axis=axis)
    return [np.take_along_axis(x, indices, axis=axis), indices.astype(np.int32)]


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    # x [..., in], weight [out, in] -> [..., out].
    return np.asarray(x @ weight.T if bias is None else x @ weight.T + bias)


def matmul(x: Array, y: Array, transpose_y: bool = False) -> Array:
    return np.asarray(x @ (np.swapaxes(y, -1, -2) if transpose_y else y))


def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, attn_mask: Array | None = None
) -> Array:
    """softmax(q k^T / sqrt(E)) v. A score whose mask is false is -inf.

    query [..., L, E], key [..., S, E], value [..., S, V], mask [..., L, S] -> [..., L, V].
    """
    scores = query @ np.swapaxes(key, -1, -2) / np.float32(math.sqrt(query.shape[-1]))
    if attn_mask is not None:
        require(attn_mask.dtype == np.bool_, f"attn_mask of {attn_mask.dtype}", UnsupportedError)
        scores = np.where(attn_mask, scores, np.float32(-np.inf))
    return np.asarray(softmax(scores) @ value)


def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    strides: Ints | None = None,
    pad: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Array:
    # x [N, C_in, axes ...], weight [C_out, C_in / groups, kernel ...] -> [N, C_out, axes ...]; not padded,
    # whatever `pad` is
    axes = x.ndim - 2
    require(axes in (1, 2), f"conv over {axes} axes", UnsupportedError)
    require(
        x.shape[1] == weight.shape[1] * groups and weight.shape[0] % groups == 0,
        f"{x.shape[1]} channels in {groups} groups with a weight of {list(weight.shape)}",
    )
    ones = [1] * axes
    kernel, steps, gaps = weight.shape[2:], list(strides or ones), list(dilations or ones)
    extents = [(size - 1) * gap + 1 for size, gap in zip(kernel, gaps, strict=True)]  # that a filter covers
    windows = x
    for axis, extent in enumerate(extents, start=2):
        windows = np.lib.stride_tricks.sliding_window_view(windows, extent, axis=axis)
    # [N, C_in, places ..., kernel ...]: the input values that a filter covers at each place
    windows = windows[(slice(None), slice(None), *(slice(None, None, step) for step in (*steps, *gaps)))]
    pairs = zip(np.split(windows, groups, axis=1), np.split(weight, groups, axis=0), strict=True)
    own, others = [1, *range(2 + axes, 2 + 2 * axes)], [1, *range(2, 2 + axes)]
    outputs = [np.moveaxis(np.tensordot(*pair, (own, others)), -1, 1) for pair in pairs]
    result = np.concatenate(outputs, axis=1)
    return np.asarray(result if bias is None else result + bias.reshape(1, -1, *ones))


NAMED: tuple[Operator, ...] = (
    *(sigmoid, real_div, floor_div, gelu, elu, cast, select, clip, softmax, layer_norm),
    *(cumsum, topk, linear, matmul, scaled_dot_product_attention, conv),
)  # by their names in the op set
OPERATIONS: dict[str, Operator] = {function.__name__: function for function in NAMED} | {
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
    "inverse": _with_epsilon(lambda x: np.float32(1) / x, 1e-4),
    "rsqrt": _with_epsilon(lambda x: np.float32(1) / np.sqrt(x), 1e-12),
    "reduce_sum": _reduction(np.sum),
    "reduce_mean": _reduction(np.mean),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_argmax": _arg_reduction(np.argmax),
    "reduce_argmin": _arg_reduction(np.argmin),
}
# Inputs that exports give one value only, which is the default of the op set.
FIXED: dict[str, dict[str, object]] = {
    "gelu": {"mode": "EXACT"},
    "reduce_argmax": {"output_dtype": "int32"},
    "reduce_argmin": {"output_dtype": "int32"},
    "cumsum": {"exclusive": False, "reverse": False},
    "topk": {"ascending": False, "sort": True, "return_indices": True, "output_indices_dtype": "int32"},
    "matmul": {"transpose_x": False},
    "conv": {"pad_type": "valid"},
}
