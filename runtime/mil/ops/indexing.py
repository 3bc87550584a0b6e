"""Reading and writing at places: slices, gathers, scatters. An index out of bounds is an error.

iOS 17 leaves it undefined; iOS 15 and 16 count negative ones from the end, which no program of theirs is worth guessing for.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops.arguments import Array, Ints, Operation

UPDATES: dict[str, Operation] = {
    "add": np.add.at,
    "sub": np.subtract.at,
    "mul": np.multiply.at,
    "div": np.divide.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _slices(
    x: Array,
    begin: Ints,
    end: Ints,
    stride: Ints | None,
    begin_mask: Ints | None,
    end_mask: Ints | None,
    squeeze_mask: Ints | None,
) -> Any:
    if {len(begin), len(end)} != {x.ndim}:
        raise MilError(f"slices {x.ndim} axes from {begin} to {end}")
    slices: list[Any] = []
    masks = (mask or repeat(0, x.ndim) for mask in (begin_mask, end_mask, squeeze_mask))
    for start, stop, step, from_start, to_end, single, size in zip(
        begin, end, stride or repeat(1, x.ndim), *masks, x.shape, strict=True
    ):
        if single:
            start = 0 if from_start else start
            if not -size <= start < size:
                raise MilError(f"takes place {start} of an axis of {size}")
            slices.append(start)
        else:
            slices.append(slice(None if from_start else start, None if to_end else stop, step))
    return tuple(slices)


def slice_by_index(
    x: Array,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    begin_mask: Ints | None = None,
    end_mask: Ints | None = None,
    squeeze_mask: Ints | None = None,
) -> Array:
    """As NumPy slices: a masked bound is left out, a squeezed axis is indexed at `begin`, which is 0 where it is masked."""
    return x[_slices(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)]


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
    """A copy of x with the slice replaced."""
    place = _slices(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)
    if x[place].shape != update.shape:
        raise MilError(f"writes shape {list(update.shape)} into a slice of {list(x[place].shape)}")
    result = x.copy()
    result[place] = update
    return result


def _bounded(indices: Array, size: int) -> Array:
    if np.any(indices < 0) or np.any(indices >= size):
        raise MilError(f"indices from {np.min(indices)} to {np.max(indices)} into an axis of {size}")
    return indices.astype(np.int64)


def gather(
    x: Array, indices: Array, axis: int = 0, batch_dims: int = 0, validate_indices: bool = False
) -> Array:
    axis %= x.ndim
    places = _bounded(indices, x.shape[axis])
    if not batch_dims:
        return np.take(x, places, axis=axis)
    if batch_dims > axis or x.shape[:batch_dims] != places.shape[:batch_dims]:
        raise MilError(
            f"batch_dims {batch_dims} with axis {axis}, shapes {list(x.shape)} and {list(places.shape)}"
        )
    pairs = zip(
        x.reshape(-1, *x.shape[batch_dims:]), places.reshape(-1, *places.shape[batch_dims:]), strict=True
    )
    rows = [np.take(one, place, axis=axis - batch_dims) for one, place in pairs]
    return np.stack(rows).reshape(*x.shape[:batch_dims], *rows[0].shape)


def gather_along_axis(x: Array, indices: Array, axis: int = 0, validate_indices: bool = False) -> Array:
    axis %= x.ndim
    return np.take_along_axis(x, _bounded(indices, x.shape[axis]), axis=axis)


def gather_nd(x: Array, indices: Array, batch_dims: int = 0, validate_indices: bool = False) -> Array:
    """The last axis of `indices` holds a place in the axes behind the batch."""
    if batch_dims:
        pairs = zip(
            x.reshape(-1, *x.shape[batch_dims:]),
            indices.reshape(-1, *indices.shape[batch_dims:]),
            strict=True,
        )
        rows = [gather_nd(one, place) for one, place in pairs]
        return np.stack(rows).reshape(*x.shape[:batch_dims], *rows[0].shape)
    return x[tuple(_bounded(indices[..., axis], x.shape[axis]) for axis in range(indices.shape[-1]))]


def _write(data: Array, place: Any, updates: Array, mode: str) -> Array:
    result = data.copy()
    if mode == "update":
        result[place] = updates
    elif mode in UPDATES:
        UPDATES[mode](result, place, updates)
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
    """Slices of `updates` go to the places that `indices` names along the axis."""
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
    """Each value of `updates` goes to its own place, moved along the axis to where `indices` says."""
    axis %= data.ndim
    place = list(np.indices(indices.shape, sparse=True))
    place[axis] = _bounded(indices, data.shape[axis])
    return _write(data, tuple(place), updates, mode)


def scatter_nd(
    data: Array, indices: Array, updates: Array, mode: str = "add", validate_indices: bool = False
) -> Array:
    """The last axis of `indices` holds a place in the first axes of `data`."""
    return _write(
        data,
        tuple(_bounded(indices[..., axis], data.shape[axis]) for axis in range(indices.shape[-1])),
        updates,
        mode,
    )


def non_zero(x: Array) -> Array:
    """Places [count, rank] of what is not zero."""
    return np.argwhere(x).astype(np.int32)


OPERATIONS: dict[str, Operation] = {
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
