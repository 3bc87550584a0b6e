"""Max and average pooling."""

import numpy as np

from runtime.mil.errors import UnsupportedError
from runtime.mil.ops.arguments import Ints, Operation
from runtime.mil.ops.products import Kernel, Pairs, padded, padding, windows
from runtime.mil.types import Array


def _windows(x: Array, kernel: Kernel, pairs: Pairs, ceil_mode: bool, fill: float) -> Array:
    """[N, C, ...in] -> [N, C, ...out, ...kernel]. Positions outside the input hold `fill`."""
    if ceil_mode:
        axes = zip(x.shape[2:], kernel.sizes, kernel.strides, pairs, strict=True)
        pairs = [_ceil_padding(*axis) for axis in axes]
    return windows(padded(x, pairs, fill), kernel)


def _ceil_padding(size: int, width: int, stride: int, pad: tuple[int, int]) -> tuple[int, int]:
    """(before, after) of one axis, with `after` enlarged so that a partial last window is kept."""
    before, after = pad
    count = -(-(size + before + after - width) // stride) + 1
    if before + after > 0 and (count - 1) * stride >= size + before:  # no window starts after the input
        count -= 1
    return before, max(after, (count - 1) * stride + width - size - before)


def _kernel_axes(x: Array) -> tuple[int, ...]:
    return tuple(range(x.ndim, 2 * x.ndim - 2))


def _kernel(x: Array, sizes: Ints, strides: Ints | None) -> Kernel:
    ones = [1] * (x.ndim - 2)
    return Kernel(sizes, strides or ones, ones)


def max_pool(
    x: Array,
    kernel_sizes: Ints,
    pad_type: str,
    strides: Ints | None = None,
    pad: Ints | None = None,
    ceil_mode: bool = False,
) -> Array:
    kernel = _kernel(x, kernel_sizes, strides)
    pairs = padding(pad_type, pad, x.shape[2:], kernel)
    return np.asarray(_windows(x, kernel, pairs, ceil_mode, -np.inf).max(axis=_kernel_axes(x)))


def avg_pool(
    x: Array,
    kernel_sizes: Ints,
    pad_type: str,
    strides: Ints | None = None,
    pad: Ints | None = None,
    exclude_padding_from_average: bool = False,
    ceil_mode: bool = False,
) -> Array:
    """The mean of each window. Padding counts as zeros unless it is excluded."""
    if ceil_mode and not exclude_padding_from_average:
        raise UnsupportedError(
            "avg_pool with ceil_mode and padding in the average: the op set does not define the outer values"
        )
    kernel = _kernel(x, kernel_sizes, strides)
    pairs = padding(pad_type, pad, x.shape[2:], kernel)
    sums = _windows(x, kernel, pairs, ceil_mode, 0).sum(axis=_kernel_axes(x))
    if not exclude_padding_from_average:
        return np.asarray(sums / np.float32(np.prod(kernel_sizes)))
    counts = _windows(np.ones_like(x), kernel, pairs, ceil_mode, 0).sum(axis=_kernel_axes(x))
    return np.asarray(sums / counts)


OPERATIONS: dict[str, Operation] = {"max_pool": max_pool, "avg_pool": avg_pool}
