"""Matrix products, attention, convolutions and pooling. Sums are accumulated in float32."""

from collections.abc import Iterable
from math import sqrt
from typing import Any, NamedTuple

import numpy as np

from runtime.mil.errors import UnsupportedError, require
from runtime.mil.ops.reductions import softmax
from runtime.mil.ops.shapes import checked
from runtime.mil.types import Array, Arrays, Ints, Operator

Pairs = list[tuple[int, int]]  # padding (before, after) per spatial axis


class Kernel(NamedTuple):
    """Geometry of a convolution or pooling kernel; one entry per spatial axis."""

    sizes: Ints
    strides: Ints
    dilations: Ints

    @property
    def extents(self) -> Ints:
        """Number of input positions from the first to the last position of the kernel."""
        return [(size - 1) * dilation + 1 for size, dilation in zip(self.sizes, self.dilations, strict=True)]


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    # x [..., in], weight [out, in] -> [..., out].
    return np.asarray(x @ weight.T if bias is None else x @ weight.T + bias)


def matmul(x: Array, y: Array, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    left = np.swapaxes(x, -1, -2) if transpose_x else x
    right = np.swapaxes(y, -1, -2) if transpose_y else y
    return np.asarray(left @ right)


def einsum(values: Arrays, equation: str) -> Array:
    return np.asarray(np.einsum(equation, *values, optimize=True))


def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, attn_mask: Array | None = None
) -> Array:
    """softmax(q k^T / sqrt(E) + mask) v. The score is -inf where a boolean mask is false.

    query [..., L, E], key [..., S, E], value [..., S, V], mask [..., L, S] -> [..., L, V].
    """
    scores = query @ np.swapaxes(key, -1, -2) / np.float32(sqrt(query.shape[-1]))
    if attn_mask is not None and attn_mask.dtype == np.bool_:
        scores = np.where(attn_mask, scores, np.float32(-np.inf))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return np.asarray(softmax(scores) @ value)


def _padding(pad_type: str, pad: Ints | None, sizes: tuple[int, ...], kernel: Kernel) -> Pairs:
    """The padding of an input with spatial `sizes`. `pad` is used with pad_type `custom` only."""
    if pad_type in ("valid", "custom"):
        return _pairs(pad if pad_type == "custom" else None, len(sizes))
    require(pad_type in ("same", "same_lower"), f"pad_type {pad_type!r}", UnsupportedError)
    pairs = []
    for size, extent, stride in zip(sizes, kernel.extents, kernel.strides, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + extent - size)
        less, more = total // 2, total - total // 2
        pairs.append((less, more) if pad_type == "same" else (more, less))
    return pairs


def _pairs(pad: Ints | None, axes: int) -> Pairs:
    amounts = pad or [0] * 2 * axes
    require(len(amounts) == 2 * axes, f"pad {amounts} for {axes} axes")
    return list(zip(amounts[::2], amounts[1::2], strict=True))


def _spatial(slices: Iterable[slice]) -> tuple[slice, ...]:
    return (slice(None), slice(None), *slices)


def _padded(x: Array, pairs: Pairs, fill: float) -> Array:
    # x [N, C, ...] with `fill` around its spatial axes.
    checked([*x.shape[:2], *(size + sum(pair) for size, pair in zip(x.shape[2:], pairs, strict=True))])
    return np.pad(x, [(0, 0), (0, 0), *pairs], constant_values=np.float32(fill))


def _windows(x: Array, kernel: Kernel) -> Array:
    # [N, C, ...in] -> [N, C, ...out, ...kernel]: the input values at each position of the kernel.
    axes: Any = tuple(range(2, x.ndim))  # Any: NumPy's annotation permits one axis only
    view = np.lib.stride_tricks.sliding_window_view(x, tuple(kernel.extents), axis=axes)
    return view[_spatial(slice(None, None, step) for step in (*kernel.strides, *kernel.dilations))]


def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    strides: Ints | None = None,
    pad_type: str = "valid",
    pad: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Array:
    # x [N, C_in, ...], weight [C_out, C_in / groups, ...] -> [N, C_out, ...]; one to three spatial axes.
    axes = x.ndim - 2
    require(
        x.shape[1] == weight.shape[1] * groups and weight.shape[0] % groups == 0,
        f"{x.shape[1]} channels in {groups} groups with a weight of {list(weight.shape)}",
    )
    ones = [1] * axes
    kernel = Kernel(list(weight.shape[2:]), strides or ones, dilations or ones)
    inputs = _windows(_padded(x, _padding(pad_type, pad, x.shape[2:], kernel), 0), kernel)
    summed = ([1, *range(2 + axes, 2 + 2 * axes)], list(range(1, 2 + axes)))  # channels and kernel positions
    pairs = zip(np.split(inputs, groups, axis=1), np.split(weight, groups, axis=0), strict=True)
    outputs = [np.moveaxis(np.tensordot(*pair, summed), -1, 1) for pair in pairs]
    return _add_bias(np.concatenate(outputs, axis=1), bias)


def _add_bias(result: Array, bias: Array | None) -> Array:
    # result [N, C, ...], bias [C].
    return np.asarray(result if bias is None else result + bias.reshape(1, -1, *[1] * (result.ndim - 2)))


def conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    pad: Ints | None = None,
    output_shape: Ints | None = None,
    pad_type: str = "valid",
    strides: Ints | None = None,
    dilations: Ints | None = None,
    groups: int = 1,
) -> Array:
    # x [N, C_in, ...], weight [C_in, C_out / groups, ...] -> [N, C_out, ...].
    ones = [1] * (x.ndim - 2)
    kernel = Kernel(list(weight.shape[2:]), strides or ones, dilations or ones)
    sizes = zip(x.shape[2:], kernel.strides, kernel.extents, strict=True)
    full = [(size - 1) * stride + extent for size, stride, extent in sizes]
    pairs = zip(np.split(x, groups, axis=1), np.split(weight, groups, axis=0), strict=True)
    result = np.concatenate([_scattered(part, filters, kernel, full) for part, filters in pairs], axis=1)
    same = [size * stride for size, stride in zip(x.shape[2:], kernel.strides, strict=True)]
    kept = _kept(pad_type, pad, full, same, output_shape[2:] if output_shape else None)
    # Positions of the output that no input value contributes to are zero.
    missing = [(0, max(0, stop - size)) for (_, stop), size in zip(kept, full, strict=True)]
    result = np.pad(result, [(0, 0), (0, 0), *missing])
    return _add_bias(result[_spatial(slice(start, stop) for start, stop in kept)], bias)


def _scattered(x: Array, weight: Array, kernel: Kernel, full: Ints) -> Array:
    """Transposed convolution of one group without padding: [N, C_in, ...in] -> [N, C_out, ...full]."""
    products = np.tensordot(x, weight, (1, 0))  # [N, ...in, C_out, ...kernel]
    result = np.zeros(checked([x.shape[0], weight.shape[1], *full]), np.float32)
    for position in np.ndindex(*kernel.sizes):
        targets = (
            slice(index * dilation, index * dilation + (size - 1) * stride + 1, stride)
            for index, dilation, size, stride in zip(
                position, kernel.dilations, x.shape[2:], kernel.strides, strict=True
            )
        )
        result[_spatial(targets)] += np.moveaxis(products[(..., *position)], -1, 1)
    return result


def _kept(pad_type: str, pad: Ints | None, full: Ints, same: Ints, requested: Ints | None) -> Pairs:
    """Start and stop of the output per spatial axis, within the `full` result.

    `same` is the input size times the stride, `requested` the output size if the program gives it.
    """
    if pad_type == "custom":
        pairs = _pairs(pad, len(full))
        sizes = requested or [size - sum(pair) for size, pair in zip(full, pairs, strict=True)]
        return [(before, before + size) for (before, _), size in zip(pairs, sizes, strict=True)]
    if pad_type == "valid":
        return [(0, size) for size in requested or full]
    require(pad_type == "same", f"conv_transpose with pad_type {pad_type!r}", UnsupportedError)
    starts = [max(0, size - kept) // 2 for size, kept in zip(full, requested or same, strict=True)]
    return [(start, start + kept) for start, kept in zip(starts, requested or same, strict=True)]


def _pool_windows(x: Array, kernel: Kernel, pairs: Pairs, ceil_mode: bool, fill: float) -> Array:
    # [N, C, ...in] -> [N, C, ...out, ...kernel]. Positions outside the input hold `fill`.
    if ceil_mode:
        axes = zip(x.shape[2:], kernel.sizes, kernel.strides, pairs, strict=True)
        pairs = [_ceil_padding(*axis) for axis in axes]
    return _windows(_padded(x, pairs, fill), kernel)


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
    pairs = _padding(pad_type, pad, x.shape[2:], kernel)
    return np.asarray(_pool_windows(x, kernel, pairs, ceil_mode, -np.inf).max(axis=_kernel_axes(x)))


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
    require(
        exclude_padding_from_average or not ceil_mode,
        "avg_pool with ceil_mode and padding in the average: the op set does not define the outer values",
        UnsupportedError,
    )
    kernel = _kernel(x, kernel_sizes, strides)
    pairs = _padding(pad_type, pad, x.shape[2:], kernel)
    sums = _pool_windows(x, kernel, pairs, ceil_mode, 0).sum(axis=_kernel_axes(x))
    if not exclude_padding_from_average:
        return np.asarray(sums / np.float32(np.prod(kernel_sizes)))
    counts = _pool_windows(np.ones_like(x), kernel, pairs, ceil_mode, 0).sum(axis=_kernel_axes(x))
    return np.asarray(sums / counts)


OPERATIONS: dict[str, Operator] = {
    "linear": linear,
    "matmul": matmul,
    "einsum": einsum,
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "conv": conv,
    "conv_transpose": conv_transpose,
    "max_pool": max_pool,
    "avg_pool": avg_pool,
}
