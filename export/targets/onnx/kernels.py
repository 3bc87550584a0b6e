"""Attention and products as operators of ONNX Runtime, which are traced and translated, never executed."""

from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnxscript import evaluator, opset23

from voxport.bundle.errors import ExportError
from voxport.bundle.spec import MASKED_SCORE
from voxport.model.layers.attention import (
    Attended,
    AttentionKernel,
    KVCache,
    Projected,
    ring_positions,
    window_mask,
)
from voxport.model.layers.rope import Rotation
from voxport.quantize.modules import SMALLEST, QuantizedLinear

MICROSOFT = "com.microsoft"  # the operator domain of ONNX Runtime
# Accuracy level: activations of 8 bits. Lower levels dequantise the weight in every call.
INTEGER_ACTIVATIONS = 4
FLOAT_ACTIVATIONS = 1  # accuracy level of MatMulNBits: it multiplies dequantised weights, as CUDA does
CHANNEL_BLOCK = 128  # block of a per-channel weight: `MatMulNBits` has no larger one
UINT8_ZERO = onnx.helper.make_tensor("zero", onnx.TensorProto.UINT8, (), [128])
op: Any = opset23  # its annotations take only constants that are tensors
CacheUpdate = tuple[torch.Tensor, torch.Tensor | None]


class SharedBufferAttention(AttentionKernel[CacheUpdate]):
    """Caches [B, H_kv, L, D]. The runtime binds one buffer as past and present. Only new rows are written.

    The operator rotates queries and keys with the whole table. For a sliding-window cache they are rotated
    before it, because there the row number differs from the position. Such a cache is staged (see `Layout`),
    because the operator writes behind the rows that it reads.
    """

    def cached(self, new: Projected, cache: KVCache, position: torch.Tensor) -> Attended:
        q, k, v, rotation = new
        assert rotation.table is not None
        last = (position + (q.shape[1] - 1)).to(torch.int32)
        total = last.max().reshape(1) + 1
        flat = (part.flatten(-2) for part in (q, k, v))
        tables, heads = (rotation.table.cos, rotation.table.sin), (q.shape[2], k.shape[2])
        out, k_cache, v_cache = group_query_attention(
            *flat, *cache, last, total, *tables, *heads, rotation.interleaved
        )
        return out.reshape(q.shape), k_cache, v_cache

    def cache_update(
        self, position: torch.Tensor, rows: int, cache: torch.Tensor, window: int
    ) -> CacheUpdate:
        """Row of the last new key, int32 [B], and the bias of the scores [1, 1, S, total] or None.

        B is 1 with a bias.
        """
        history = window - 1
        if (
            cache.shape[2] == window
        ):  # one row per call once the cache is full: all rows before it are visible
            return (position.clamp(max=history) + (rows - 1)).to(torch.int32), None
        keys = torch.cat((ring_positions(history, position), position + torch.arange(rows)))
        last = torch.full_like(position, history - 1) + rows
        last = last.to(torch.int32)
        return last, torch.where(window_mask(keys, position, rows, window), 0.0, MASKED_SCORE)[None, None]

    def sliding_window(self, new: Projected, cache: KVCache, update: CacheUpdate) -> Attended:
        (q, k, v, rotation), (last, bias) = new, update
        flat, heads = (_rotated(q, rotation), _rotated(k, rotation), v.flatten(-2)), (q.shape[2], k.shape[2])
        total = last.max().reshape(1) + 1
        out, k_cache, v_cache = biased_attention(*flat, *cache, last, total, bias, *heads)
        return out.reshape(q.shape), k_cache, v_cache

    def rotated(
        self, q: torch.Tensor, k: torch.Tensor, rotation: Rotation
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return _rotated(q, rotation).reshape(q.shape), _rotated(k, rotation).reshape(k.shape)

    def uncached(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """As one ONNX operator, which reads a key for several query heads without copies of it."""
        flat, heads = [part.flatten(-2) for part in (q, k, v)], (q.shape[2], k.shape[2])
        results = torch.onnx.ops.attention(*flat, q_num_heads=heads[0], kv_num_heads=heads[1])
        attended: torch.Tensor = results[0]
        return attended.reshape(q.shape)


def _rotated(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x [B, S, H, D] -> rotated [B, S, H·D], as one ONNX operator in place of ten."""
    rotated: torch.Tensor = torch.onnx.ops.rotary_embedding(
        x.flatten(-2), rotation.cos, rotation.sin, interleaved=rotation.interleaved, num_heads=x.shape[2]
    )
    return rotated


def lower_linear(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """x [..., K] -> [..., N] with the weights of `linear`: groups as `MatMulNBits`, channels as a product of
    8-bit integers, which takes half the time at 6 rows.
    """
    if linear.scheme.group or not linear.scheme.integer_activations(True):
        return lower_to_blocks(x, linear)
    y: torch.Tensor = matmul_integer(x, linear.constant, linear.scale)
    return y if linear.bias is None else y + linear.bias


def lower_to_blocks(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """x [..., K] -> [..., N] as `MatMulNBits`, which CUDA has too."""
    scale, block = block_scale(linear)
    level = accuracy_level(linear)
    y: torch.Tensor = matmul_nbits(x, linear.constant, scale, linear.scheme.bits, block, level)
    return y if linear.bias is None else y + linear.bias


def accuracy_level(linear: QuantizedLinear) -> int:
    """The attribute of `MatMulNBits`, in float32."""
    return INTEGER_ACTIVATIONS if linear.scheme.integer_activations(True) else FLOAT_ACTIVATIONS


def block_scale(linear: QuantizedLinear) -> tuple[torch.Tensor, int]:
    """Scale [N, blocks] and block of `MatMulNBits`. A per-channel scale is repeated for each block."""
    if linear.scheme.group:
        return linear.scale, linear.block
    return linear.scale.repeat(1, -(-linear.in_features // CHANNEL_BLOCK)), CHANNEL_BLOCK


# Values of an exported graph are named after the operators of this library, so a new operator name changes
# artifacts.


@torch.library.custom_op("voxport::matmul_nbits", mutates_args=())
def matmul_nbits(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bits: int, block: int, level: int
) -> torch.Tensor:
    """`MatMulNBits`: x [..., K], weight int8 [N, K], scale [N, ceil(K / block)] -> [..., N]."""
    raise ExportError("matmul_nbits is only traced; the eager arithmetic is quantize.modules.int8_per_block")


@matmul_nbits.register_fake
def _(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bits: int, block: int, level: int
) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("voxport::matmul_integer", mutates_args=())
def matmul_integer(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`MatMulIntegerToFloat` of rounded rows: x [..., K], weight int8 [N, K], scale [N, 1] -> [..., N]."""
    raise ExportError(
        "matmul_integer is only traced; the eager arithmetic is quantize.modules.int8_per_block"
    )


@matmul_integer.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("voxport::biased_attention", mutates_args=())
def biased_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    last: torch.Tensor,
    total: torch.Tensor,
    bias: torch.Tensor | None,
    heads: int,
    kv_heads: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`GroupQueryAttention` without rotation; bias [1, 1, S, total] is added to the scores. See
    `group_query_attention`.
    """
    raise ExportError("biased_attention is only traced; the eager kernel is ReferenceAttention")


@torch.library.custom_op("voxport::group_query_attention", mutates_args=())
def group_query_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    last: torch.Tensor,
    total: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    heads: int,
    kv_heads: int,
    interleaved: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`GroupQueryAttention`, which rotates queries and keys.

    q [B, S, H·D], k and v [B, S, H_kv·D], caches [B, H_kv, L, D], last int32 [B] (row of the last new key),
    total int32 [1] (rows in use), cos and sin [L, D/2], whether the rotated pairs are neighbours
    -> attended [B, S, H·D] and both caches.
    """
    raise ExportError("group_query_attention is only traced; the eager kernel is ReferenceAttention")


@biased_attention.register_fake
@group_query_attention.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), torch.empty_like(k_cache), torch.empty_like(v_cache)


# Translations: arguments and results are symbolic values of onnxscript. It inspects the annotations and takes
# an argument without one as an input, so these functions stay untyped: hence `type: ignore`. A `None` among
# the inputs of a node is an omitted optional input.


def _node(kind: str, inputs: tuple[Any, ...], outputs: int = 1, **attributes: int) -> Any:
    """Records a node of the domain of ONNX Runtime, for which onnxscript has no typed builder."""
    node = ir.node(kind, inputs, attributes, domain=MICROSOFT, version=1, num_outputs=outputs)
    tracer: Any = evaluator.default()
    tracer.nodes.append(node)
    return node.outputs if outputs > 1 else node.outputs[0]


def _translate_matmul(x, weight, scale, bits: int, block: int, level: int):  # type: ignore[no-untyped-def]
    rows, columns = weight.shape
    return _node(
        "MatMulNBits",
        (x, weight, scale),
        K=columns,
        N=rows,
        bits=bits,
        block_size=block,
        accuracy_level=level,
    )


def _translate_integer_matmul(x, weight, scale):  # type: ignore[no-untyped-def]
    """The operator has one scale for all rows, here 1. Both integers are offset by 128: with signed weights,
    sums of two products saturate at 16 bits on processors with AVX2 and without VNNI.
    """
    top = op.Max(op.ReduceMax(op.Abs(x), [-1]), SMALLEST)
    one, zero = op.Constant(value_float=1.0), op.Constant(value=UINT8_ZERO)
    integers = op.QuantizeLinear(op.Mul(x, op.Div(127.0, top)), one, zero)
    product = _node("MatMulIntegerToFloat", (integers, weight, one, scale, zero, zero))
    return op.Mul(product, op.Div(top, 127.0))


def _translate_rotating(  # type: ignore[no-untyped-def]
    q, k, v, k_cache, v_cache, last, total, cos, sin, heads: int, kv_heads: int, interleaved: bool
):
    inputs = (q, k, v, k_cache, v_cache, last, total, cos, sin)
    rotary = {"do_rotary": 1, "rotary_interleaved": int(interleaved)}
    return _node("GroupQueryAttention", inputs, 3, num_heads=heads, kv_num_heads=kv_heads, **rotary)


def _translate_biased(  # type: ignore[no-untyped-def]
    q, k, v, k_cache, v_cache, last, total, bias, heads: int, kv_heads: int
):
    inputs = (q, k, v, k_cache, v_cache, last, total, None, None, None, bias)
    return _node("GroupQueryAttention", inputs, 3, num_heads=heads, kv_num_heads=kv_heads)


# Any: keys are overloads of torch.ops, which torch types as Any
TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.voxport.matmul_nbits.default: _translate_matmul,
    torch.ops.voxport.matmul_integer.default: _translate_integer_matmul,
    torch.ops.voxport.biased_attention.default: _translate_biased,
    torch.ops.voxport.group_query_attention.default: _translate_rotating,
}
