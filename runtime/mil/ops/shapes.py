"""Operations that rearrange values, and operations that create arrays from scalars."""

from math import ceil, prod

import numpy as np

from voxport.runtime.mil.errors import UnsupportedError, require
from voxport.runtime.mil.types import Array, Arrays, Ints, Operator

MAX_VALUES = 2**28  # of an array whose shape an operation computes: 1 GB of float32
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


def concat(values: Arrays, axis: int, interleave: bool = False) -> Array:
    require(not interleave, "concat with interleave", UnsupportedError)
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


OPERATIONS: dict[str, Operator] = {
    "reshape": reshape,
    "transpose": transpose,
    "expand_dims": expand_dims,
    "squeeze": squeeze,
    "concat": concat,
    "stack": stack,
    "split": split,
    "tile": tile,
    "reverse": reverse,
    "pad": pad,
    "shape": shape,
    "range_1d": range_1d,
    "fill_like": fill_like,
}
