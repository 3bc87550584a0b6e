"""Matrix products, attention and convolutions. Sums are float32, as everything is."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops.arguments import Array, Arrays, Ints, Operation
from runtime.mil.ops.reductions import softmax
from runtime.mil.ops.shapes import checked

Pairs = list[tuple[int, int]]


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """x [..., in], weight [out, in] -> [..., out]."""
    product = x @ weight.T
    return product if bias is None else product + bias


def matmul(x: Array, y: Array, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    return (np.swapaxes(x, -1, -2) if transpose_x else x) @ (np.swapaxes(y, -1, -2) if transpose_y else y)


def einsum(values: Arrays, equation: str) -> Array:
    return np.einsum(equation, *values, optimize=True)


def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, attn_mask: Array | None = None
) -> Array:
    """softmax(q k' / sqrt(E) + mask) v; a boolean mask lets through where it is true."""
    scores = query @ np.swapaxes(key, -1, -2) / np.float32(sqrt(query.shape[-1]))
    if attn_mask is not None:
        scores = (
            np.where(attn_mask, scores, np.float32(-np.inf))
            if attn_mask.dtype == np.bool_
            else scores + attn_mask
        )
    return softmax(scores) @ value


def padding(
    pad_type: str, pad: Ints | None, sizes: tuple[int, ...], kernel: Ints, strides: Ints, dilations: Ints
) -> Pairs:
    """(before, after) per spatial axis."""
    if pad_type == "valid":
        return [(0, 0)] * len(sizes)
    if pad_type == "custom":
        return pairs_of(pad, len(sizes))
    if pad_type not in ("same", "same_lower"):
        raise UnsupportedError(f"pad_type {pad_type!r}")
    pairs = []
    for size, width, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + (width - 1) * dilation + 1 - size)
        less, more = total // 2, total - total // 2
        pairs.append((less, more) if pad_type == "same" else (more, less))
    return pairs


def pairs_of(pad: Ints | None, axes: int) -> Pairs:
    amounts = pad or [0] * 2 * axes
    if len(amounts) != 2 * axes:
        raise MilError(f"pad {amounts} for {axes} axes")
    return list(zip(amounts[::2], amounts[1::2], strict=True))


def padded_with(x: Array, pairs: Pairs, filler: float) -> Array:
    """x [N, C, ...] with `filler` around its spatial axes."""
    checked([*x.shape[:2], *(size + sum(pair) for size, pair in zip(x.shape[2:], pairs, strict=True))])
    return np.pad(x, [(0, 0), (0, 0), *pairs], constant_values=np.float32(filler))


def windows(x: Array, reach: Ints, steps: Ints, spread: Ints) -> Array:
    """[N, C, ...size] -> [N, C, ...out, ...kernel]: what a kernel that reaches over `reach` values sees at every step."""
    axes: Any = tuple(range(2, x.ndim))  # NumPy's annotation knows one axis only
    found = np.lib.stride_tricks.sliding_window_view(x, tuple(reach), axis=axes)
    return found[(slice(None),) * 2 + tuple(slice(None, None, step) for step in (*steps, *spread))]


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
    """x [N, C_in, ...], weight [C_out, C_in / groups, ...] -> [N, C_out, ...]; one to three spatial axes."""
    axes, kernel = x.ndim - 2, list(weight.shape[2:])
    if x.shape[1] != weight.shape[1] * groups or weight.shape[0] % groups:
        raise MilError(f"{x.shape[1]} channels in {groups} groups with a weight of {list(weight.shape)}")
    steps, spread = strides or [1] * axes, dilations or [1] * axes
    padded = padded_with(x, padding(pad_type, pad, x.shape[2:], kernel, steps, spread), 0)
    seen = windows(
        padded,
        [(width - 1) * dilation + 1 for width, dilation in zip(kernel, spread, strict=True)],
        steps,
        spread,
    )
    over = [1, *range(2 + axes, 2 + 2 * axes)]  # channels and places of the kernel
    parts = zip(np.split(seen, groups, axis=1), np.split(weight, groups, axis=0), strict=True)
    result = np.concatenate(
        [
            np.moveaxis(np.tensordot(part, filters, (over, list(range(1, 2 + axes)))), -1, 1)
            for part, filters in parts
        ],
        axis=1,
    )
    return _biased(result, bias)


def _biased(result: Array, bias: Array | None) -> Array:
    return result if bias is None else result + bias.reshape(1, -1, *[1] * (result.ndim - 2))


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
    """x [N, C_in, ...], weight [C_in, C_out / groups, ...] -> [N, C_out, ...]."""
    axes, kernel = x.ndim - 2, weight.shape[2:]
    steps, spread = strides or [1] * axes, dilations or [1] * axes
    whole = [
        (size - 1) * step + (width - 1) * dilation + 1
        for size, step, width, dilation in zip(x.shape[2:], steps, kernel, spread, strict=True)
    ]
    pieces = []
    for part, filters in zip(np.split(x, groups, axis=1), np.split(weight, groups, axis=0), strict=True):
        product = np.tensordot(part, filters, (1, 0))  # [N, ...in, C_out, ...kernel]
        piece = np.zeros(checked([x.shape[0], filters.shape[1], *whole]), np.float32)
        for place in np.ndindex(*kernel):
            reached = tuple(
                slice(at * d, at * d + (size - 1) * step + 1, step)
                for at, d, size, step in zip(place, spread, x.shape[2:], steps, strict=True)
            )
            piece[(slice(None), slice(None), *reached)] += np.moveaxis(product[(Ellipsis, *place)], -1, 1)
        pieces.append(piece)
    result = np.concatenate(pieces, axis=1)
    same = [size * step for size, step in zip(x.shape[2:], steps, strict=True)]
    kept = _kept(pad_type, pad, whole, same, output_shape[2:] if output_shape else None)
    longer = [
        (0, max(0, last - size)) for (_, last), size in zip(kept, whole, strict=True)
    ]  # what no value reaches is zero
    result = np.pad(result, [(0, 0), (0, 0), *longer])
    return _biased(result[(slice(None), slice(None), *(slice(first, last) for first, last in kept))], bias)


def _kept(pad_type: str, pad: Ints | None, whole: Ints, same: Ints, wanted: Ints | None) -> Pairs:
    """First and last place (the last not included) per spatial axis; `same` is size times stride, `wanted` the shape where it is given."""
    if pad_type == "custom":
        pairs = pairs_of(pad, len(whole))
        sizes = wanted or [size - before - after for size, (before, after) in zip(whole, pairs, strict=True)]
        return [(before, before + size) for (before, _), size in zip(pairs, sizes, strict=True)]
    if pad_type == "valid":
        return [(0, size) for size in wanted or whole]
    if pad_type != "same":
        raise UnsupportedError(f"conv_transpose with pad_type {pad_type!r}")
    starts = [max(0, size - kept) // 2 for size, kept in zip(whole, wanted or same, strict=True)]
    return [(start, start + kept) for start, kept in zip(starts, wanted or same, strict=True)]


OPERATIONS: dict[str, Operation] = {
    "linear": linear,
    "matmul": matmul,
    "einsum": einsum,
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "conv": conv,
    "conv_transpose": conv_transpose,
}
