"""Slices, gathers and scatters. An index out of bounds raises MilError.

iOS 17 leaves such an index undefined. iOS 15 and 16 count negative indices from the end; this is not
implemented.
"""

from collections.abc import Iterator
from itertools import repeat

import numpy as np

from runtime.mil.errors import MilError, UnsupportedError, require
from runtime.mil.types import Array, Ints, Operator

UPDATES: dict[str, Operator] = {
    "add": np.add.at,
    "sub": np.subtract.at,
    "mul": np.multiply.at,
    "div": np.divide.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


Index = tuple[int | slice, ...]
Masks = tuple[Ints | None, Ints | None, Ints | None]  # begin, end, squeeze


def _index(shape: tuple[int, ...], begin: Ints, end: Ints, stride: Ints | None, masks: Masks) -> Index:
    """The slice of each axis as NumPy defines it, or one index where the axis is squeezed."""
    rank = len(shape)
    require({len(begin), len(end)} == {rank}, f"slice from {begin} to {end} of {rank} axes")
    index: list[int | slice] = []
    axes = zip(
        begin,
        end,
        stride or repeat(1, rank),
        *(mask or repeat(0, rank) for mask in masks),
        shape,
        strict=True,
    )
    for start, stop, step, from_start, to_end, squeezed, size in axes:
        if squeezed:
            start = 0 if from_start else start
            require(-size <= start < size, f"index {start} into an axis of size {size}")
            index.append(start)
        else:
            index.append(slice(None if from_start else start, None if to_end else stop, step))
    return tuple(index)


def slice_by_index(
    x: Array,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Ints | None = None,
    end_mask: Ints | None = None,
    squeeze_mask: Ints | None = None,
) -> Array:
    """x[begin:end:stride], with NumPy's rules for negative and out-of-range bounds.

    A masked bound is left out. A squeezed axis is indexed at `begin`, or at 0 if `begin` is masked.
    """
    return np.asarray(x[_index(x.shape, begin, end, stride, (begin_mask, end_mask, squeeze_mask))])


def slice_update(
    x: Array,
    update: Array,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Ints | None = None,
    end_mask: Ints | None = None,
    squeeze_mask: Ints | None = None,
) -> Array:
    """A copy of x with the slice replaced by `update`. The slice is that of `slice_by_index`."""
    index = _index(x.shape, begin, end, stride, (begin_mask, end_mask, squeeze_mask))
    require(
        x[index].shape == update.shape,
        f"update of shape {list(update.shape)} for a slice of shape {list(x[index].shape)}",
    )
    result = x.copy()
    result[index] = update
    return result


def _bounded(indices: Array, size: int) -> Array:
    if np.any(indices < 0) or np.any(indices >= size):
        raise MilError(f"indices from {np.min(indices)} to {np.max(indices)} into an axis of size {size}")
    return indices.astype(np.int64)


def gather(
    x: Array, indices: Array, axis: int = 0, batch_dims: int = 0, validate_indices: bool = False
) -> Array:
    """Slices of x at `indices` along an axis, separately for each element of the first `batch_dims` axes."""
    axis %= x.ndim
    indices = _bounded(indices, x.shape[axis])
    if not batch_dims:
        return np.take(x, indices, axis=axis)
    shapes = f"{list(x.shape)} and {list(indices.shape)}"
    require(
        batch_dims <= axis and x.shape[:batch_dims] == indices.shape[:batch_dims],
        f"batch_dims {batch_dims} with axis {axis} and shapes {shapes}",
    )
    rows = [np.take(*pair, axis=axis - batch_dims) for pair in _batches(x, indices, batch_dims)]
    return np.stack(rows).reshape(*x.shape[:batch_dims], *rows[0].shape)


def _batches(x: Array, indices: Array, batch_dims: int) -> Iterator[tuple[Array, Array]]:
    return zip(
        x.reshape(-1, *x.shape[batch_dims:]), indices.reshape(-1, *indices.shape[batch_dims:]), strict=True
    )


def gather_along_axis(x: Array, indices: Array, axis: int = 0, validate_indices: bool = False) -> Array:
    """Each result is the value of x at its own index, with the index along `axis` replaced."""
    axis %= x.ndim
    return np.take_along_axis(x, _bounded(indices, x.shape[axis]), axis=axis)


def gather_nd(x: Array, indices: Array, batch_dims: int = 0, validate_indices: bool = False) -> Array:
    """Slices of x at multi-dimensional indices, which form the last axis of `indices`."""
    if batch_dims:
        rows = [gather_nd(*pair) for pair in _batches(x, indices, batch_dims)]
        return np.stack(rows).reshape(*x.shape[:batch_dims], *rows[0].shape)
    return np.asarray(x[_index_nd(x, indices)])


def _index_nd(x: Array, indices: Array) -> tuple[Array, ...]:
    return tuple(_bounded(indices[..., axis], x.shape[axis]) for axis in range(indices.shape[-1]))


def _write(data: Array, index: tuple[slice | Array, ...], updates: Array, mode: str) -> Array:
    """A copy of data with `updates` written to, or combined with, the values at an index."""
    result = data.copy()
    if mode == "update":
        result[index] = updates
    elif mode in UPDATES:
        UPDATES[mode](result, index, updates)
    else:
        raise UnsupportedError(f"scatter mode {mode!r}")
    return result


def scatter(
    data: Array,
    indices: Array,
    updates: Array,
    axis: int = 0,
    mode: str = "add",
    validate_indices: bool = False,
) -> Array:
    """Writes slices of `updates` to the indices along the axis."""
    axis %= data.ndim
    return _write(data, (slice(None),) * axis + (_bounded(indices, data.shape[axis]),), updates, mode)


def scatter_along_axis(
    data: Array,
    indices: Array,
    updates: Array,
    axis: int = 0,
    mode: str = "add",
    validate_indices: bool = False,
) -> Array:
    """Writes each value of `updates` to its own index, with the index along `axis` replaced."""
    axis %= data.ndim
    index = list(np.indices(indices.shape, sparse=True))
    index[axis] = _bounded(indices, data.shape[axis])
    return _write(data, tuple(index), updates, mode)


def scatter_nd(
    data: Array, indices: Array, updates: Array, mode: str = "add", validate_indices: bool = False
) -> Array:
    """Writes slices of `updates` to multi-dimensional indices, which form the last axis of `indices`."""
    return _write(data, _index_nd(data, indices), updates, mode)


def non_zero(x: Array) -> Array:
    """Indices [count, rank] of the nonzero values."""
    return np.argwhere(x).astype(np.int32)


OPERATIONS: dict[str, Operator] = {
    "slice_by_index": slice_by_index,
    "slice_update": slice_update,
    "gather": gather,
    "gather_along_axis": gather_along_axis,
    "gather_nd": gather_nd,
    "scatter": scatter,
    "scatter_along_axis": scatter_along_axis,
    "scatter_nd": scatter_nd,
    "non_zero": non_zero,
}
