"""Pooling over windows."""

from __future__ import annotations

import numpy as np

from runtime.mil.errors import UnsupportedError
from runtime.mil.ops.arguments import Array, Ints, Operation
from runtime.mil.ops.products import padded_with, padding, windows


def _windows(
    x: Array,
    kernel: Ints,
    strides: Ints | None,
    pad_type: str,
    pad: Ints | None,
    ceil_mode: bool,
    filler: float,
) -> Array:
    """[N, C, ...out, ...kernel], `filler` where a window lies over the edge."""
    axes = x.ndim - 2
    steps, ones = strides or [1] * axes, [1] * axes
    pairs = padding(pad_type, pad, x.shape[2:], kernel, steps, ones)
    if ceil_mode:
        longer = []
        for size, width, step, (before, after) in zip(x.shape[2:], kernel, steps, pairs, strict=True):
            count = -(-(size + before + after - width) // step) + 1
            if (
                before + after > 0 and (count - 1) * step >= size + before
            ):  # no window begins beyond the input
                count -= 1
            longer.append((before, max(after, (count - 1) * step + width - size - before)))
        pairs = longer
    return windows(padded_with(x, pairs, filler), kernel, steps, ones)


def _kernel_axes(x: Array) -> tuple[int, ...]:
    return tuple(range(x.ndim, 2 * x.ndim - 2))


def max_pool(
    x: Array,
    kernel_sizes: Ints,
    pad_type: str,
    strides: Ints | None = None,
    pad: Ints | None = None,
    ceil_mode: bool = False,
) -> Array:
    return _windows(x, kernel_sizes, strides, pad_type, pad, ceil_mode, -np.inf).max(axis=_kernel_axes(x))


def avg_pool(
    x: Array,
    kernel_sizes: Ints,
    pad_type: str,
    strides: Ints | None = None,
    pad: Ints | None = None,
    exclude_padding_from_average: bool = False,
    ceil_mode: bool = False,
) -> Array:
    """Padding counts as zeros, or not at all."""
    if ceil_mode and not exclude_padding_from_average:
        raise UnsupportedError(
            "avg_pool with ceil_mode and padding in the average: its definition does not say what lies beyond the padding"
        )
    sums = _windows(x, kernel_sizes, strides, pad_type, pad, ceil_mode, 0).sum(axis=_kernel_axes(x))
    if not exclude_padding_from_average:
        return sums / np.float32(np.prod(kernel_sizes))
    return sums / _windows(np.ones_like(x), kernel_sizes, strides, pad_type, pad, ceil_mode, 0).sum(
        axis=_kernel_axes(x)
    )


OPERATIONS: dict[str, Operation] = {"max_pool": max_pool, "avg_pool": avg_pool}
