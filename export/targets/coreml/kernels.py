"""Attention, products and norms in operators that the Core ML converter translates exactly."""

from collections.abc import Callable
from math import log2
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from voxport.bundle.spec import MASKED_SCORE
from voxport.export.targets.coreml.tools import Builder, inputs_of, register_torch_op, types
from voxport.model.layers.attention import (
    Attended,
    AttentionKernel,
    KVCache,
    Projected,
    ring_positions,
    window_mask,
)
from voxport.quantize.modules import QuantizedLinear
from voxport.quantize.search import SMALLEST_SCALE

CacheUpdate = tuple[torch.Tensor, torch.Tensor]
# The only two ranges that the converter takes. They contain the integers of a scheme.
RANGES = {4: (-8, 7), 8: (-128, 127)}
MAX_FLOAT16 = float(np.finfo(np.float16).max)
# Rows are scaled to this magnitude before they are squared. Their squares and epsilons then fit into float16.
NORM_PEAK = 8.0


class OneHotAttention(AttentionKernel[CacheUpdate]):
    """Caches [1, H_kv, L, D]. Each call rewrites the whole cache with a one-hot product.

    Query heads keep an axis beside their groups (rank 5). Merging the two axes beside a dynamic S adds guards
    on strides.
    """

    def cached(self, new: Projected, cache: KVCache, position: torch.Tensor) -> Attended:
        at = (position + torch.arange(new.q.shape[1]))[:, None]  # [S, 1]
        slots = torch.arange(cache.k.shape[2])
        return self.sliding_window(new, cache, (slots == at, slots > at))

    def cache_update(
        self, position: torch.Tensor, rows: int, cache: torch.Tensor, window: int
    ) -> CacheUpdate:
        """For a ring, two masks bool [S, L]: the row that each new row is written to, and the rows hidden
        from its query.
        """
        length = cache.shape[2]
        at = (position + torch.arange(rows))[:, None] % length
        hidden = window_mask(ring_positions(length, position + rows), position, rows, window).logical_not()
        return torch.arange(length) == at, hidden

    def sliding_window(self, new: Projected, cache: KVCache, update: CacheUpdate) -> Attended:
        written, hidden = update
        q, k = new.rotation.both(new.q, new.k)
        rows, heads, head_dim = q.shape[1:]
        kv_heads = cache.k.shape[1]
        chosen = written.to(q.dtype)
        kept = 1 - chosen.sum(0)[:, None]  # [L, 1]
        spread = chosen.transpose(0, 1)[None, None]  # [1, 1, L, S]
        k_cache, v_cache = (
            old * kept + spread @ part.transpose(1, 2) for old, part in zip(cache, (k, new.v), strict=True)
        )
        grouped = (q * head_dim**-0.5).transpose(1, 2).reshape(1, kv_heads, heads // kv_heads, rows, head_dim)
        # [1, H_kv, H / H_kv, S, L]
        scores = grouped @ k_cache[:, :, None].transpose(3, 4) + hidden.to(q.dtype) * MASKED_SCORE
        out = scores.softmax(-1) @ v_cache[:, :, None]
        return out.permute(0, 3, 1, 2, 4).reshape(1, rows, heads, head_dim), k_cache, v_cache


def dequantized_linear(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """x [..., K] -> [..., N] with dequantised weights, and activations as the scheme asks."""
    return linear.multiply(_activations(x, linear))  # dequantises a few rows at a time


class TracedLinears:
    """`dequantized_linear` in operators that the converter knows, for one trace.

    The weight of a linear is dequantised once, however often the trace calls the linear. The 15 steps of a
    predictor would add it 15 times, and the converter would compare and merge all of them.
    """

    def __init__(self) -> None:
        self._weights: dict[QuantizedLinear, torch.Tensor] = {}

    def __call__(self, x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
        x = _activations(x, linear)
        if linear not in self._weights:
            low, high = RANGES[linear.scheme.bits]
            self._weights[linear] = torch.ops.torchao.dequantize_affine(
                linear.constant, [1, linear.block], linear.scale, None, torch.int8, low, high
            )
        return F.linear(x, self._weights[linear], linear.bias)


def _activations(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    return _int8_rows(x) if linear.scheme.activations == "int8" else x


def _int8_rows(x: torch.Tensor) -> torch.Tensor:
    """The activations of `int8_per_token` in plain operators. The scale is at least the smallest normal
    float16.

    x is divided by the scale and not multiplied by its reciprocal, because the converter adds 1e-4 to what it
    inverts. The zero point is -128 - `least`. It cancels except in the upper bound, because no value lies
    below `low`.
    """
    low, high = x.amin(-1, keepdim=True).clamp(max=0), x.amax(-1, keepdim=True).clamp(min=0)
    scale = ((high - low) / 255).clamp(min=SMALLEST_SCALE)
    least = torch.round(low / scale)
    return torch.minimum(torch.round(x / scale), least + 255) * scale


def rms_norm(x: torch.Tensor, shape: list[int], weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm in float16. The converter's version does not scale epsilon with the row, and divides 0 by 0 on
    a zero row.

    The converter adds 1e-4 to what it inverts. The error of `gain` cancels out.
    """
    gain = NORM_PEAK / x.abs().amax(-1, keepdim=True).clamp(min=1)
    scaled = x * gain
    return scaled * torch.rsqrt(scaled.square().mean(-1, keepdim=True) + (gain * eps**0.5).square()) * weight


@register_torch_op(torch_alias=["voxport::look_up", "voxport.look_up"])  # type: ignore[untyped-decorator]
def look_up(context: Any, node: Any) -> None:
    """Stores a palettized weight as indices and palettes."""
    indices, palette = (value.val for value in inputs_of(context, node, expected=2))
    dtype = types.nptype_from_builtin(types.string_to_builtin(f"uint{log2(palette.shape[1]):.0f}"))
    tables = palette[:, None, :, None]  # [N / channels, 1, values, 1]
    context.add(Builder.constexpr_lut_to_dense(indices=indices.astype(dtype), lut=tables, name=node.name))


@register_torch_op(override=True)  # type: ignore[untyped-decorator]  # coremltools has no types
def floordiv(context: Any, node: Any) -> None:
    """Division of the sizes of tensors, as integers.

    The converter's version gives a float. Positions that are added to one become float16 in the package, and
    are rounded above 2,048.
    """
    size, divisor = inputs_of(context, node, expected=2)
    context.add(Builder.floor_div(x=size, y=divisor, name=node.name))


def _where_scalars(condition: torch.Tensor, chosen: float, other: float) -> torch.Tensor:
    """`where` with two scalars. The converter gives the result the shape of the scalars."""
    return condition.to(torch.float32) * (chosen - other) + other


def _multiply(x: torch.Tensor, factor: Any) -> Any:
    """Splits a factor that is inexact in float16, such as 1 / sqrt(128), into the sum of two float16 values.

    `factor` is a number or a tensor. NotImplemented keeps the operator.
    """
    if not isinstance(factor, float) or not x.is_floating_point():
        return NotImplemented
    near = float(np.float16(factor)) if abs(factor) < MAX_FLOAT16 else factor
    rest = float(np.float16(factor - near))
    return x * near + x * rest if rest else NotImplemented


# Any: keys are overloads of torch.ops, which torch types as Any
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.rms_norm.default: rms_norm,
    torch.ops.aten.where.Scalar: _where_scalars,
    torch.ops.aten.mul.Tensor: _multiply,
}
