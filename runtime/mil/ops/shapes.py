"""Operations that rearrange values, and operations that create arrays from scalars."""

from math import ceil, prod

import numpy as np

from runtime.mil.errors import UnsupportedError, require
from runtime.mil.types import Array, Arrays, Ints, Operator

MAX_VALUES = 2**28  # of an array whose shape an operation computes: 1 GB of float32
ZERO, OFF, ON = np.zeros((), np.float32), np.zeros((), np.int32), np.ones((), np.int32)


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


def squeeze(x: Array, axes: Ints | None = None) -> Array:
    return np.squeeze(x, None if axes is None else tuple(axes))


def concat(values: Arrays, axis: int, interleave: bool = False) -> Array:
    """Concatenates. With `interleave`, slices of the values alternate along the axis."""
    if not interleave:
        return np.concatenate([np.atleast_1d(value) for value in values], axis=axis)
    require(len({value.shape for value in values}) == 1, "interleaved values have different shapes")
    axis %= values[0].ndim
    stacked = np.stack(values, axis=axis + 1)
    return stacked.reshape(*values[0].shape[:axis], -1, *values[0].shape[axis + 1 :])


def stack(values: Arrays, axis: int) -> Array:
    return np.stack(values, axis=axis)


def split(x: Array, axis: int, num_splits: int | None = None, split_sizes: Ints | None = None) -> Arrays:
    """Splits an axis into parts of `split_sizes`, or into `num_splits` equal parts."""
    size = x.shape[axis]
    if split_sizes is None:
        if num_splits is None:
            raise UnsupportedError("split without num_splits and split_sizes")
        require(
            num_splits >= 1 and size % num_splits == 0,
            f"an axis of size {size} into {num_splits} equal parts",
        )
        split_sizes = [size // num_splits] * num_splits
    require(
        sum(split_sizes) == size and min(split_sizes) >= 0,
        f"split sizes {split_sizes} of an axis of size {size}",
    )
    return np.split(x, np.cumsum(split_sizes)[:-1], axis=axis)


def slice_by_size(x: Array, begin: Ints, size: Ints) -> Array:
    """A size of -1 extends the slice to the end of the axis."""
    slices = []
    for start, count, length in zip(begin, size, x.shape, strict=True):
        first = start + length if start < 0 else start
        stop = length if count == -1 else first + count
        require(0 <= first <= stop <= length, f"slice from {first} to {stop} of an axis of size {length}")
        slices.append(slice(first, stop))
    return x[tuple(slices)]


def tile(x: Array, reps: Ints) -> Array:
    require(len(reps) == x.ndim, f"reps {reps} for {x.ndim} axes")
    checked([size * rep for size, rep in zip(x.shape, reps, strict=True)])
    return np.tile(x, reps)


def reverse(x: Array, axes: Ints | None = None) -> Array:
    return np.flip(x, None if axes is None else tuple(axes))


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
        case "replicate":
            return np.pad(x, pairs, mode="edge")
    raise UnsupportedError(f"pad mode {mode!r}")


def shape(x: Array) -> Array:
    return np.array(x.shape, dtype=np.int32)


def range_1d(end: Array, start: Array, step: Array) -> Array:
    """start, start + step, ... without `end`."""
    require(step != 0, "a range with step 0")
    count = max(0, ceil((float(end) - float(start)) / float(step)))
    checked([count])
    return np.asarray((start + np.arange(count) * step).astype(start.dtype))


def fill(shape: Ints, value: Array = ZERO) -> Array:
    return np.full(checked(shape), value)


def fill_like(ref_tensor: Array, value: Array = ZERO) -> Array:
    return np.full(ref_tensor.shape, value)


def one_hot(
    indices: Array, one_hot_vector_size: int, axis: int = -1, on_value: Array = ON, off_value: Array = OFF
) -> Array:
    """`on_value` at each index along a new axis. An index out of range gives `off_value` only."""
    axis %= indices.ndim + 1
    checked([one_hot_vector_size * max(indices.size, 1)])
    shape = [-1 if index == axis else 1 for index in range(indices.ndim + 1)]
    hot = np.expand_dims(indices, axis) == np.arange(one_hot_vector_size).reshape(shape)
    return np.where(hot, on_value, off_value)


def band_part(x: Array, lower: int = -1, upper: int = -1) -> Array:
    """Keeps `lower` diagonals below the main one and `upper` above it. A negative number keeps all."""
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    inside = ((lower < 0) | (rows - columns <= lower)) & ((upper < 0) | (columns - rows <= upper))
    return np.where(inside, x, np.zeros((), x.dtype))


def pixel_shuffle(x: Array, upscale_factor: int) -> Array:
    # [N, C * b * b, H, W] -> [N, C, H * b, W * b].
    n, c, h, w = x.shape
    b = upscale_factor
    return x.reshape(n, c // b**2, b, b, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // b**2, h * b, w * b)


def pixel_unshuffle(x: Array, downscale_factor: int) -> Array:
    # [N, C, H * b, W * b] -> [N, C * b * b, H, W].
    n, c, h, w = x.shape
    b = downscale_factor
    blocks = x.reshape(n, c, h // b, b, w // b, b).transpose(0, 1, 3, 5, 2, 4)
    return blocks.reshape(n, c * b**2, h // b, w // b)


OPERATIONS: dict[str, Operator] = {
    "reshape": reshape,
    "transpose": transpose,
    "expand_dims": expand_dims,
    "squeeze": squeeze,
    "concat": concat,
    "stack": stack,
    "split": split,
    "slice_by_size": slice_by_size,
    "tile": tile,
    "reverse": reverse,
    "pad": pad,
    "shape": shape,
    "range_1d": range_1d,
    "fill": fill,
    "fill_like": fill_like,
    "one_hot": one_hot,
    "band_part": band_part,
    "pixel_shuffle": pixel_shuffle,
    "pixel_unshuffle": pixel_unshuffle,
}
