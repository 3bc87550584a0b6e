"""Operations that rearrange, select or create values, and compressed weights (`constexpr_*`)."""

from itertools import repeat
from math import ceil, prod

import numpy as np

from voxport.runtime.mil.types import Array, Arrays, Ints, MilError, Operator, UnsupportedError, require

MAX_VALUES = 2**28  # largest array whose shape an operation computes: 1 GB of float32
ZERO = np.zeros((), np.float32)


def checked(shape: Ints) -> Ints:
    """Returns the shape. Raises MilError if a size is negative or the array would be too large."""
    expected = f"expected at most {MAX_VALUES} values and no negative size"
    require(
        min(shape, default=0) >= 0 and prod(shape) <= MAX_VALUES, f"an array of shape {shape}: {expected}"
    )
    return shape


def reshape(x: Array, shape: Ints) -> Array:
    """A size of -1 is inferred. A size of 0 copies the size of x, with axes aligned at the last one, or 1."""
    if x.size:
        own = ([1] * len(shape) + list(x.shape))[x.ndim :]
        shape = [size or kept for size, kept in zip(shape, own, strict=True)]
    return x.reshape(shape)


def transpose(x: Array, perm: Ints) -> Array:
    return np.transpose(x, perm)


def expand_dims(x: Array, axes: Ints) -> Array:
    return np.expand_dims(x, tuple(axes))


def squeeze(x: Array, axes: Ints) -> Array:
    return np.squeeze(x, tuple(axes))


def concat(values: Arrays, axis: int) -> Array:
    return np.concatenate([np.atleast_1d(value) for value in values], axis=axis)


def stack(values: Arrays, axis: int) -> Array:
    return np.stack(values, axis=axis)


def split(x: Array, axis: int, split_sizes: Ints) -> Arrays:
    """Splits an axis into parts of `split_sizes`."""
    size = x.shape[axis]
    require(
        sum(split_sizes) == size and min(split_sizes) >= 0,
        f"split sizes {split_sizes} of an axis of size {size}",
    )
    return np.split(x, np.cumsum(split_sizes)[:-1], axis=axis)


def tile(x: Array, reps: Ints) -> Array:
    require(len(reps) == x.ndim, f"reps {reps} for {x.ndim} axes")
    checked([size * rep for size, rep in zip(x.shape, reps, strict=True)])
    return np.tile(x, reps)


def reverse(x: Array, axes: Ints) -> Array:
    return np.flip(x, tuple(axes))


def pad(x: Array, pad: Ints, mode: str = "constant", constant_val: Array = ZERO) -> Array:
    """`pad` is a flat list of pairs (before, after) for the last axes."""
    require(
        len(pad) % 2 == 0 and len(pad) <= 2 * x.ndim and min(pad, default=0) >= 0,
        f"pad {pad} for {x.ndim} axes",
    )
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2) + list(zip(pad[::2], pad[1::2], strict=True))
    checked([size + sum(pair) for size, pair in zip(x.shape, pairs, strict=True)])
    match mode:
        case "constant":
            return np.pad(x, pairs, constant_values=constant_val.astype(x.dtype))
        case "reflect":
            require(
                all(max(pair) < max(size, 1) for pair, size in zip(pairs, x.shape, strict=True)),
                f"reflection by {pairs} of shape {list(x.shape)}",
            )
            return np.pad(x, pairs, mode="reflect")
    raise UnsupportedError(f"pad mode {mode!r}")


def shape(x: Array) -> Array:
    return np.array(x.shape, dtype=np.int32)


def range_1d(end: Array, start: Array, step: Array) -> Array:
    """start, start + step, ... without `end`."""
    require(step != 0, "a range with step 0")
    count = max(0, ceil((float(end) - float(start)) / float(step)))
    checked([count])
    return np.asarray((start + np.arange(count) * step).astype(start.dtype))


def fill_like(ref_tensor: Array, value: Array = ZERO) -> Array:
    return np.full(ref_tensor.shape, value)


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


def gather(x: Array, indices: Array, axis: int = 0, validate_indices: bool = False) -> Array:
    """Slices of x at `indices` along an axis, which are always validated."""
    size = x.shape[axis]
    if np.any(indices < 0) or np.any(indices >= size):
        raise MilError(f"indices from {np.min(indices)} to {np.max(indices)} into an axis of size {size}")
    return np.take(x, indices.astype(np.int64), axis=axis)


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


NAMED: tuple[Operator, ...] = (
    *(reshape, transpose, expand_dims, squeeze, concat, stack, split, tile, reverse),
    *(pad, shape, range_1d, fill_like, slice_by_index, gather),
    *(constexpr_blockwise_shift_scale, constexpr_lut_to_dense),
)  # by their names in the op set
OPERATIONS: dict[str, Operator] = {function.__name__: function for function in NAMED}
# Inputs that exports give one value only, which is the default of the op set.
FIXED: dict[str, dict[str, object]] = {"concat": {"interleave": False}, "gather": {"batch_dims": 0}}
