"""Matrix products, attention and convolution. Sums are accumulated in float32."""

from math import sqrt

import numpy as np

from voxport.runtime.mil.errors import UnsupportedError, require
from voxport.runtime.mil.ops.reductions import softmax
from voxport.runtime.mil.types import Array, Ints, Operator


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    # x [..., in], weight [out, in] -> [..., out].
    return np.asarray(x @ weight.T if bias is None else x @ weight.T + bias)


def matmul(x: Array, y: Array, transpose_x: bool = False, transpose_y: bool = False) -> Array:
    require(not transpose_x, "matmul with transpose_x", UnsupportedError)
    return np.asarray(x @ (np.swapaxes(y, -1, -2) if transpose_y else y))


def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, attn_mask: Array | None = None
) -> Array:
    """softmax(q k^T / sqrt(E)) v. The score is -inf where the mask is false.

    query [..., L, E], key [..., S, E], value [..., S, V], mask [..., L, S] -> [..., L, V].
    """
    scores = query @ np.swapaxes(key, -1, -2) / np.float32(sqrt(query.shape[-1]))
    if attn_mask is not None:
        require(attn_mask.dtype == np.bool_, f"attn_mask of {attn_mask.dtype}", UnsupportedError)
        scores = np.where(attn_mask, scores, np.float32(-np.inf))
    return np.asarray(softmax(scores) @ value)


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
    # x [N, C_in, T_in], weight [C_out, C_in / groups, K] -> [N, C_out, T_out].
    require(pad_type == "valid", f"conv with pad_type {pad_type!r}", UnsupportedError)  # `pad` has no effect
    require(x.ndim == 3, f"conv over {x.ndim - 2} axes", UnsupportedError)
    require(
        x.shape[1] == weight.shape[1] * groups and weight.shape[0] % groups == 0,
        f"{x.shape[1]} channels in {groups} groups with a weight of {list(weight.shape)}",
    )
    (stride,), (dilation,) = strides or [1], dilations or [1]
    extent = (weight.shape[2] - 1) * dilation + 1  # inputs from the first to the last that a filter covers
    windows = np.lib.stride_tricks.sliding_window_view(x, extent, axis=2)[:, :, ::stride, ::dilation]
    # [N, C_in, T_out, K]: the input values that a filter covers at each place
    pairs = zip(np.split(windows, groups, axis=1), np.split(weight, groups, axis=0), strict=True)
    outputs = [np.moveaxis(np.tensordot(*pair, ([1, 3], [1, 2])), -1, 1) for pair in pairs]
    result = np.concatenate(outputs, axis=1)
    return np.asarray(result if bias is None else result + bias.reshape(1, -1, 1))


OPERATIONS: dict[str, Operator] = {
    "linear": linear,
    "matmul": matmul,
    "scaled_dot_product_attention": scaled_dot_product_attention,
    "conv": conv,
}
