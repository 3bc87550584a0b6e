"""Operations over axes: reductions, softmax, normalisation, cumulative sums, the largest values."""

from collections.abc import Callable
from typing import Any

import numpy as np

from voxport.runtime.mil.errors import UnsupportedError, require
from voxport.runtime.mil.types import Array, Arrays, Ints, Operator


def _reduction(function: Callable[..., Any]) -> Operator:
    def operation(x: Array, axes: Ints, keep_dims: bool = False) -> Array:
        return np.asarray(function(x, axis=tuple(axes), keepdims=keep_dims)).astype(x.dtype)

    return operation


def _arg_reduction(function: Callable[..., Any]) -> Operator:
    def operation(x: Array, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32") -> Array:
        require(output_dtype == "int32", f"indices of type {output_dtype!r}", UnsupportedError)
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


def cumsum(x: Array, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    require(not exclusive and not reverse, "cumsum that is exclusive or reversed", UnsupportedError)
    return np.cumsum(x, axis=axis, dtype=x.dtype)


def topk(
    x: Array,
    k: int = 1,
    axis: int = -1,
    ascending: bool = False,
    sort: bool = True,
    return_indices: bool = True,
    output_indices_dtype: str = "int32",
) -> Arrays:
    """The k largest values and their indices. Equal values are in the order of their indices."""
    require(x.dtype.kind != "f" or not np.isnan(x).any(), "sorting of NaN")
    is_supported = sort and return_indices and not ascending and k >= 1
    expected = "expected a sorted topk with int32 indices, of a number of largest values"
    require(is_supported and output_indices_dtype == "int32", expected, UnsupportedError)
    order = np.argsort(-x.astype(np.float64), axis=axis, kind="stable")
    indices = np.take(order, np.arange(k), axis=axis)
    return [np.take_along_axis(x, indices, axis=axis), indices.astype(np.int32)]


OPERATIONS: dict[str, Operator] = {
    "reduce_sum": _reduction(np.sum),
    "reduce_mean": _reduction(np.mean),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_argmax": _arg_reduction(np.argmax),
    "reduce_argmin": _arg_reduction(np.argmin),
    "softmax": softmax,
    "layer_norm": layer_norm,
    "cumsum": cumsum,
    "topk": topk,
}
