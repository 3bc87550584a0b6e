"""Operations over axes: sums and their kin, softmax, norms, sorting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops.arguments import Array, Arrays, Ints, Operation

INDEX_TYPES = ("int32", "uint16")


def _over(function: Callable[..., Any]) -> Operation:
    def operation(x: Array, axes: Ints | None = None, keep_dims: bool = False) -> Array:
        return np.asarray(function(x, axis=None if axes is None else tuple(axes), keepdims=keep_dims)).astype(
            x.dtype
        )

    return operation


def _log_sum_exp(x: Array, axis: Any, keepdims: bool) -> Array:
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis=axis)


def _arg(function: Callable[..., Any]) -> Operation:
    def operation(x: Array, axis: int = -1, keep_dims: bool = False, output_dtype: str = "int32") -> Array:
        return np.asarray(function(x, axis=axis, keepdims=keep_dims)).astype(_index_type(output_dtype))

    return operation


def _index_type(name: str) -> str:
    if name not in INDEX_TYPES:
        raise UnsupportedError(f"indices of type {name!r}")
    return name


def softmax(x: Array, axis: int = -1) -> Array:
    exponents = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return exponents / np.sum(exponents, axis=axis, keepdims=True)


def layer_norm(
    x: Array,
    axes: Ints | None = None,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: float = 1e-5,
) -> Array:
    """gamma and beta have the shape of the normalised axes."""
    over = tuple(range(x.ndim)) if axes is None else tuple(sorted(axis % x.ndim for axis in axes))
    shape = [size if axis in over else 1 for axis, size in enumerate(x.shape)]
    scaled = _standardised(x, over, epsilon)
    return scaled * (np.float32(1) if gamma is None else gamma.reshape(shape)) + (
        np.float32(0) if beta is None else beta.reshape(shape)
    )


def _standardised(x: Array, over: tuple[int, ...], epsilon: float) -> Array:
    centred = x - np.mean(x, axis=over, keepdims=True)
    return centred / np.sqrt(np.mean(np.square(centred), axis=over, keepdims=True) + epsilon)


def _channels(values: Array | None, x: Array, missing: float) -> Array:
    return np.full((), missing, np.float32) if values is None else values.reshape(1, -1, *[1] * (x.ndim - 2))


def batch_norm(
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: float = 1e-5,
) -> Array:
    """Statistics per channel, the second axis."""
    scale = _channels(gamma, x, 1) / np.sqrt(_channels(variance, x, 1) + epsilon)
    return (x - _channels(mean, x, 0)) * scale + _channels(beta, x, 0)


def instance_norm(
    x: Array, gamma: Array | None = None, beta: Array | None = None, epsilon: float = 1e-5
) -> Array:
    return _standardised(x, tuple(range(2, x.ndim)), epsilon) * _channels(gamma, x, 1) + _channels(beta, x, 0)


def l2_norm(x: Array, epsilon: float = 1e-6) -> Array:
    """Over the last three axes."""
    return x / np.sqrt(np.sum(np.square(x), axis=(-3, -2, -1), keepdims=True) + epsilon)


def cumsum(x: Array, axis: int = 0, exclusive: bool = False, reverse: bool = False) -> Array:
    values = np.flip(x, axis) if reverse else x
    total = np.cumsum(values, axis=axis, dtype=x.dtype)
    if exclusive:
        total = np.roll(total, 1, axis)
        total[(slice(None),) * (axis % x.ndim) + (0,)] = 0
    return np.flip(total, axis) if reverse else total


def argsort(x: Array, axis: int = -1, ascending: bool = False) -> Array:
    """Equal values stay in the order of their places."""
    return _order(x, axis, ascending).astype(np.int32)


def _order(x: Array, axis: int, ascending: bool) -> Array:
    if x.dtype.kind == "f" and np.isnan(x).any():
        raise MilError("sorts a value that is no number")
    return np.argsort(x if ascending else -x.astype(np.float64), axis=axis, kind="stable")


def topk(
    x: Array,
    k: int = 1,
    axis: int = -1,
    ascending: bool = False,
    sort: bool = True,
    return_indices: bool = True,
    output_indices_dtype: str = "int32",
) -> Arrays:
    """Largest first, or with `ascending` smallest first; equal values in the order of their places, and so all without `sort`."""
    count = x.shape[axis] if k == -1 else k
    indices = np.take(_order(x, axis, ascending), np.arange(count), axis=axis)
    if not sort:
        indices = np.sort(indices, axis=axis)
    values = np.take_along_axis(x, indices, axis=axis)
    return [values, indices.astype(_index_type(output_indices_dtype))] if return_indices else [values]


OPERATIONS: dict[str, Operation] = {
    "reduce_sum": _over(np.sum),
    "reduce_mean": _over(np.mean),
    "reduce_max": _over(np.max),
    "reduce_min": _over(np.min),
    "reduce_prod": _over(np.prod),
    "reduce_l1_norm": _over(lambda x, axis, keepdims: np.sum(np.abs(x), axis=axis, keepdims=keepdims)),
    "reduce_l2_norm": _over(
        lambda x, axis, keepdims: np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims))
    ),
    "reduce_sum_square": _over(lambda x, axis, keepdims: np.sum(np.square(x), axis=axis, keepdims=keepdims)),
    "reduce_log_sum_exp": _over(_log_sum_exp),
    "reduce_argmax": _arg(np.argmax),
    "reduce_argmin": _arg(np.argmin),
    "softmax": softmax,
    "layer_norm": layer_norm,
    "batch_norm": batch_norm,
    "instance_norm": instance_norm,
    "l2_norm": l2_norm,
    "cumsum": cumsum,
    "argsort": argsort,
    "topk": topk,
}
