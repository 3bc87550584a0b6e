"""Operators of ONNX Runtime, as torch operators that are traced and translated, never executed."""

from collections.abc import Callable
from typing import Any

import onnx_ir as ir
import torch
from onnxscript import evaluator

from bundle.errors import ExportError

MICROSOFT = "com.microsoft"  # the operator domain of ONNX Runtime
INTEGER_ACTIVATIONS = (
    4  # accuracy level: activations of 8 bits; lower levels dequantise the weight in every call
)

# Values of an exported graph are named after the operators of this library, so a new operator name changes
# artifacts.


@torch.library.custom_op("voxport::matmul_nbits", mutates_args=())
def matmul_nbits(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bits: int, block: int
) -> torch.Tensor:
    """`MatMulNBits`: x [..., K], weight int8 [N, K], scale [N, ceil(K / block)] -> [..., N]."""
    raise ExportError("matmul_nbits is only traced; the eager arithmetic is quantize.modules.int8_per_block")


@matmul_nbits.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bits: int, block: int) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("voxport::rolling_attention", mutates_args=())
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
    raise ExportError("rolling_attention is only traced; the eager kernel is ReferenceAttention")


@biased_attention.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), torch.empty_like(k_cache), torch.empty_like(v_cache)


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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`GroupQueryAttention`, which rotates queries and keys.

    q [B, S, H·D], k and v [B, S, H_kv·D], caches [B, H_kv, L, D], last int32 [B] (row of the last new key),
    total int32 [1] (rows in use), cos and sin [L, D/2] -> attended [B, S, H·D] and both caches.
    """
    raise ExportError("group_query_attention is only traced; the eager kernel is ReferenceAttention")


@group_query_attention.register_fake
def _(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, *_: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.empty_like(q), torch.empty_like(k_cache), torch.empty_like(v_cache)


# Translations: arguments and results are symbolic values of onnxscript. It inspects the annotations and takes
# an argument without one as an input. A `None` among the inputs of a node is an omitted optional input.


def _node(kind: str, inputs: tuple[Any, ...], outputs: int = 1, **attributes: int) -> Any:
    """Records a node of the domain of ONNX Runtime, for which onnxscript has no typed builder."""
    node = ir.node(kind, inputs, attributes, domain=MICROSOFT, version=1, num_outputs=outputs)
    tracer: Any = evaluator.default()
    tracer.nodes.append(node)
    return node.outputs if outputs > 1 else node.outputs[0]


def _translate_matmul(x, weight, scale, bits: int, block: int):  # type: ignore[no-untyped-def]
    rows, columns = weight.shape
    settings = {"bits": bits, "block_size": block, "accuracy_level": INTEGER_ACTIVATIONS}
    return _node("MatMulNBits", (x, weight, scale), K=columns, N=rows, **settings)


def _translate_rotating(  # type: ignore[no-untyped-def]
    q, k, v, k_cache, v_cache, last, total, cos, sin, heads: int, kv_heads: int
):
    settings = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, "rotary_interleaved": 1}
    return _node("GroupQueryAttention", (q, k, v, k_cache, v_cache, last, total, cos, sin), 3, **settings)


def _translate_biased(  # type: ignore[no-untyped-def]
    q, k, v, k_cache, v_cache, last, total, bias, heads: int, kv_heads: int
):
    inputs = (q, k, v, k_cache, v_cache, last, total, None, None, None, bias)
    return _node("GroupQueryAttention", inputs, 3, num_heads=heads, kv_num_heads=kv_heads)


# Any: keys are overloads of torch.ops, which torch types as Any
TRANSLATIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.voxport.matmul_nbits.default: _translate_matmul,
    torch.ops.voxport.rolling_attention.default: _translate_biased,
    torch.ops.voxport.group_query_attention.default: _translate_rotating,
}
