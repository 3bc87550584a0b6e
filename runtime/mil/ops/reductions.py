"""Operations over axes: reductions, softmax, normalisation, cumulative sums, sorting."""

from collections.abc import Callable
from typing import Any

import numpy as np

from runtime.mil.errors import UnsupportedError, require
from runtime.mil.types import Array, Arrays, Ints, Operator

INDEX_TYPES = ("int32", "uint16")


def _reduction(function: Callable[..., Any]) -> Operator:
    def operation(x: Array, axes: Ints | None = None, keep_dims: bool = False) -> Array:
        return np.asarray(function(x, axis=None if axes is None else tuple(axes), keepdims=keep_dims)).astype(
            x.dtype
        )

    return operation


def _log_sum_exp(x: Array, axis: tuple[int, ...] | None, keepdims: bool) -> Array:
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return np.asarray(total if keepdims else np.squeeze(total, axis=axis))


def _arg_reduction(function: Callable[..., Any]) -> Operator:
    def operation(x: Array, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32") -> Array:
        return np.asarray(function(x, axis=axis, keepdims=keep_dims)).astype(_index_type(output_dtype))

    return operation


def _index_type(name: str) -> str:
    expected = f"expected one of {', '.join(INDEX_TYPES)}"
    require(name in INDEX_TYPES, f"indices of type {name!r}; {expected}", UnsupportedError)
    return name


def softmax(x: Array, axis: int = -1) -> Array:
    exponents = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return np.asarray(exponents / np.sum(exponents, axis=axis, keepdims=True))


def layer_norm(
    x: Array,
    axes: Ints | None = None,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: float = 1e-5,
) -> Array:
    """Normalises over `axes`, by default all. gamma and beta have the shape of these axes."""
    normalised = tuple(range(x.ndim)) if axes is None else tuple(sorted(axis % x.ndim for axis in axes))
    shape = [size if axis in normalised else 1 for axis, size in enumerate(x.shape)]
    scale = np.float32(1) if gamma is None else gamma.reshape(shape)
    offset = np.float32(0) if beta is None else beta.reshape(shape)
    return np.asarray(_standardised(x, normalised, epsilon) * scale + offset)


def _standardised(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    # x with mean 0 and variance 1 over the axes.
    centred = x - np.mean(x, axis=axes, keepdims=True)
    return np.asarray(centred / np.sqrt(np.mean(np.square(centred), axis=axes, keepdims=True) + epsilon))


def _channels(values: Array | None, x: Array, default: float) -> Array:
    # values [C], reshaped to broadcast along the second axis of x.
    return np.full((), default, np.float32) if values is None else values.reshape(1, -1, *[1] * (x.ndim - 2))


def batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: float = 1e-5,
) -> Array:
    """Normalises x [N, C, ...] with a given mean [C] and variance [C]."""
    scale = _channels(gamma, x, 1) / np.sqrt(_channels(variance, x, 1) + epsilon)
    return np.asarray((x - _channels(mean, x, 0)) * scale + _channels(beta, x, 0))


def instance_norm(
    x: Array, gamma: Array | None = None, beta: Array | None = None, epsilon: float = 1e-5
) -> Array:
    """Normalises x [N, C, ...] over the axes after the second."""
    normalised = _standardised(x, tuple(range(2, x.ndim)), epsilon)
    return np.asarray(normalised * _channels(gamma, x, 1) + _channels(beta, x, 0))


def l2_norm(x: Array, epsilon: float = 1e-6) -> Array:
    """Divides by the L2 norm over the last three axes."""
    return np.asarray(x / np.sqrt(np.sum(np.square(x), axis=(-3, -2, -1), keepdims=True) + epsilon))


def cumsum(x: Array, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    total = np.cumsum(np.flip(x, axis) if reverse else x, axis=axis, dtype=x.dtype)
    if exclusive:
        total = np.roll(total, 1, axis)
        total[(slice(None),) * (axis % x.ndim) + (0,)] = 0
    return np.flip(total, axis) if reverse else total


def argsort(x: Array, axis: int = -1, ascending: bool = False) -> Array:
    """The indices that sort x along an axis. The sort is stable."""
    require(x.dtype.kind != "f" or not np.isnan(x).any(), "sorting of NaN")
    order = np.argsort(x if ascending else -x.astype(np.float64), axis=axis, kind="stable")
    return order.astype(np.int32)


def topk(
    x: Array,
    k: int = 1,
    axis: int = -1,
    ascending: bool = False,
    sort: bool = True,
    return_indices: bool = True,
    output_indices_dtype: str = "int32",
) -> Arrays:
    """The k largest values, or the smallest with `ascending`, and their indices. k = -1 selects all.

    Equal values are in the order of their indices. Without `sort`, all values are.
    """
    count = x.shape[axis] if k == -1 else k
    indices = np.take(argsort(x, axis, ascending), np.arange(count), axis=axis)
    if not sort:
        indices = np.sort(indices, axis=axis)
    values = np.take_along_axis(x, indices, axis=axis)
    return [values, indices.astype(_index_type(output_indices_dtype))] if return_indices else [values]


OPERATIONS: dict[str, Operator] = {
    "reduce_sum": _reduction(np.sum),
    "reduce_mean": _reduction(np.mean),
    "reduce_max": _reduction(np.max),
    "reduce_min": _reduction(np.min),
    "reduce_prod": _reduction(np.prod),
    "reduce_l1_norm": _reduction(lambda x, axis, keepdims: np.sum(np.abs(x), axis=axis, keepdims=keepdims)),
    "reduce_l2_norm": _reduction(
        lambda x, axis, keepdims: np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims))
    ),
    "reduce_sum_square": _reduction(
        lambda x, axis, keepdims: np.sum(np.square(x), axis=axis, keepdims=keepdims)
    ),
    "reduce_log_sum_exp": _reduction(_log_sum_exp),
    "reduce_argmax": _arg_reduction(np.argmax),
    "reduce_argmin": _arg_reduction(np.argmin),
    "softmax": softmax,
    "layer_norm": layer_norm,
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    "l2_norm": l2_norm,
    "cumsum": cumsum,
    "argsort": argsort,
    "topk": topk,
}
