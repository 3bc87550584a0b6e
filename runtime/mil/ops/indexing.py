"""Slices and gathers. An index out of bounds raises MilError."""

from itertools import repeat

import numpy as np

from voxport.runtime.mil.errors import MilError, UnsupportedError, require
from voxport.runtime.mil.types import Array, Ints, Operator


def slice_by_index(
    x: Array,
    begin: Ints,
    end: Ints,
    stride: Ints | None = None,
    end_mask: Ints | None = None,
    squeeze_mask: Ints | None = None,
) -> Array:
    """x[begin:end:stride], with NumPy's rules for negative and out-of-range bounds.

    A masked `end` is left out. A squeezed axis is indexed at `begin`.
    """
    rank = len(x.shape)
    require({len(begin), len(end)} == {rank}, f"slice from {begin} to {end} of {rank} axes")
    index: list[int | slice] = []
    axes = zip(
        begin,
        end,
        stride or repeat(1, rank),
        *(mask or repeat(0, rank) for mask in (end_mask, squeeze_mask)),
        x.shape,
        strict=True,
    )
    for start, stop, step, to_end, squeezed, size in axes:
        if squeezed:
            require(-size <= start < size, f"index {start} into an axis of size {size}")
            index.append(start)
        else:
            index.append(slice(start, None if to_end else stop, step))
    return np.asarray(x[tuple(index)])


def gather(
    x: Array, indices: Array, axis: int = 0, batch_dims: int = 0, validate_indices: bool = False
) -> Array:
    """Slices of x at `indices` along an axis."""
    require(batch_dims == 0, f"gather with batch_dims {batch_dims}", UnsupportedError)
    size = x.shape[axis]
    if np.any(indices < 0) or np.any(indices >= size):
        raise MilError(f"indices from {np.min(indices)} to {np.max(indices)} into an axis of size {size}")
    return np.take(x, indices.astype(np.int64), axis=axis)


OPERATIONS: dict[str, Operator] = {
    "slice_by_index": slice_by_index,
    "gather": gather,
}
