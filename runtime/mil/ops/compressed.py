"""Compressed weights (`constexpr_*`)."""

import numpy as np

from voxport.runtime.mil.errors import UnsupportedError, require
from voxport.runtime.mil.types import Array, Operator


def constexpr_blockwise_shift_scale(data: Array, scale: Array) -> Array:
    """scale * data, with one scale per block."""
    blocks = _blocks(scale, data.shape)
    result = data.astype(np.float32).reshape([size for pair in blocks for size in pair])
    result *= scale.astype(np.float32).reshape([size for count in scale.shape for size in (count, 1)])
    return result.reshape(data.shape)


def _blocks(values: Array, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Number and size of the blocks along each axis, if `values` has one value per block.

    Raises MilError if the number does not divide the size of the axis.
    """
    require(
        values.ndim == len(shape)
        and all(count and size % count == 0 for size, count in zip(shape, values.shape, strict=True)),
        f"blocks of shape {list(values.shape)} over {list(shape)}",
    )
    return [(count, size // count) for size, count in zip(shape, values.shape, strict=True)]


def constexpr_lut_to_dense(indices: Array, lut: Array) -> Array:
    """Looks up each index in the table of its block. `lut` is [...blocks, entries, 1]."""
    require(
        lut.ndim == indices.ndim + 2,
        f"a table of shape {list(lut.shape)} for indices of shape {list(indices.shape)}",
    )
    require(lut.shape[-1] == 1, f"a table of vectors of {lut.shape[-1]} values", UnsupportedError)
    tables = lut[..., 0]
    *counts, entries = tables.shape
    low, high = int(indices.min(initial=0)), int(indices.max(initial=0))
    require(low >= 0 and high < entries, f"indices from {low} to {high} into tables of {entries} entries")
    blocks = _blocks(tables[..., 0], indices.shape)
    starts = np.arange(0, tables.size, entries).reshape([size for count in counts for size in (count, 1)])
    places = indices.reshape([size for pair in blocks for size in pair]) + starts
    values: Array = np.take(tables, places)
    return values.reshape(indices.shape)


OPERATIONS: dict[str, Operator] = {
    "constexpr_blockwise_shift_scale": constexpr_blockwise_shift_scale,
    "constexpr_lut_to_dense": constexpr_lut_to_dense,
}
