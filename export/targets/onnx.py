"""Lowering to ONNX: `MatMulNBits` for quantised products, `GroupQueryAttention` over caches that are never copied."""

from __future__ import annotations

import hashlib
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch
from onnxscript import evaluator

from bundle.cache import ONNX_PAST, ONNX_PRESENT
from bundle.errors import ExportError, first_line
from export.targets.base import EntryPoint, Graph, Lowering, dynamic_shapes, quiet_logs, zero_states
from model.component import Component
from model.layers.attention import AttentionKernel, attention_kernel, ring_positions, window_mask
from model.layers.rope import Rotation
from quantize.linear import CHANNEL_BLOCK, QuantizedLinear, int8_per_block, linear_kernel

OPSET = 23
INLINE_BELOW = 1024  # bytes; smaller constants stay in the graph
TRACE_STREAMS = 3
MASKED = -1e4  # finite: a row may be masked whole
ALIGNMENT = 4096  # a page, so that a runtime may map each weight


@torch.library.custom_op("voxport::matmul_nbits", mutates_args=())
def matmul_nbits(
    x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, bits: int, block: int
) -> torch.Tensor:
    """x [..., K], weight int8 [N, K], scale [N, ceil(K / block)] -> [..., N]. Traced, never run."""
    raise ExportError("matmul_nbits stands for an ONNX operator; eager runs quantize.linear.int8_per_block")


@matmul_nbits.register_fake
def _(x, weight, scale, bits, block):
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("voxport::rolling_attention", mutates_args=())
def rolling_attention(
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
    """The same operator without rotation; bias [1, 1, S, total], added to the scores. Traced, never run."""
    raise ExportError("rolling_attention stands for an ONNX operator; eager runs ReferenceAttention")


@rolling_attention.register_fake
def _(q, k, v, k_cache, v_cache, last, total, bias, heads, kv_heads):
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
    """q [B, S, H·D], k and v [B, S, H_kv·D], caches [B, H_kv, L, D], last int32 [B], total int32 [1], cos and sin [L, D/2]. Traced, never run."""
    raise ExportError("group_query_attention stands for an ONNX operator; eager runs ReferenceAttention")


@group_query_attention.register_fake
def _(q, k, v, k_cache, v_cache, last, total, cos, sin, heads, kv_heads):
    return torch.empty_like(q), torch.empty_like(k_cache), torch.empty_like(v_cache)


def lower_linear(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """x [..., K] -> [..., N] as `MatMulNBits` with the weights of `linear`. A per-channel scale is repeated for each block."""
    block = linear.block if linear.scheme.group else CHANNEL_BLOCK
    blocks = -(-linear.in_features // block)
    scale = linear.scale if linear.scheme.group else linear.scale.repeat(1, blocks)
    y = matmul_nbits(x, linear.constant, scale, linear.scheme.bits, block)
    return y if linear.bias is None else y + linear.bias


class SharedBufferAttention(AttentionKernel):
    """Caches [B, H_kv, L, D] that the runtime binds as past and present at once, so that only new rows are written.
    The operator rotates queries and keys by itself, from the whole table, but for caches that roll: there a row's place says
    nothing of its position. Those are staged (see `Layout`), because the operator writes behind the rows that it reads."""

    layout = "BHSD, staged"

    def cached(self, q, k, v, rotation, k_cache, v_cache, position):
        last = (position + (q.shape[1] - 1)).to(torch.int32)
        total = last.max().reshape(1) + 1
        flat = (part.flatten(-2) for part in (q, k, v))
        out, k_cache, v_cache = group_query_attention(
            *flat,
            k_cache,
            v_cache,
            last,
            total,
            rotation.table.cos,
            rotation.table.sin,
            q.shape[2],
            k.shape[2],
        )
        return out.reshape(q.shape), k_cache, v_cache

    def cache_update(self, position, rows, cache, window):
        """Place of the last row, and what is added to the scores."""
        history = window - 1
        if (
            cache.shape[2] == window
        ):  # one row a call, once the cache is full: all that lies before it is seen
            return (position.clamp(max=history) + (rows - 1)).to(torch.int32), None
        keys = torch.cat((ring_positions(history, position), position + torch.arange(rows)))
        last = torch.full_like(position, history - 1) + rows
        return last.to(torch.int32), torch.where(window_mask(keys, position, rows, window), 0.0, MASKED)[
            None, None
        ]

    def sliding_window(self, q, k, v, rotation, k_cache, v_cache, update):
        last, bias = update
        flat = (_rotated(q, rotation), _rotated(k, rotation), v.flatten(-2))
        out, k_cache, v_cache = rolling_attention(
            *flat, k_cache, v_cache, last, last + 1, bias, q.shape[2], k.shape[2]
        )
        return out.reshape(q.shape), k_cache, v_cache


def _rotated(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """x [B, S, H, D] -> rotated [B, S, H·D], by ONNX's own operator: spelled out it is ten small ones."""
    return torch.onnx.ops.rotary_embedding(
        x.flatten(-2), rotation.cos, rotation.sin, interleaved=True, num_heads=x.shape[2]
    )


def _microsoft(kind: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
    """Records a node of ONNX Runtime's own domain, which onnxscript's typed builders do not know."""
    node = ir.node(kind, inputs, attributes, domain="com.microsoft", version=1, num_outputs=outputs)
    evaluator.default().nodes.append(node)
    return node.outputs if outputs > 1 else node.outputs[0]


def _translate_matmul(x, weight, scale, bits: int, block: int):
    rows, columns = weight.shape
    # Level 4 computes with 8-bit activations; lower levels dequantise the weight on every call.
    return _microsoft(
        "MatMulNBits", x, weight, scale, K=columns, N=rows, bits=bits, block_size=block, accuracy_level=4
    )


def _translate_attention(q, k, v, k_cache, v_cache, last, total, cos, sin, heads: int, kv_heads: int):
    settings = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, "rotary_interleaved": 1}
    return _microsoft(
        "GroupQueryAttention", q, k, v, k_cache, v_cache, last, total, cos, sin, outputs=3, **settings
    )


def _translate_rolling(q, k, v, k_cache, v_cache, last, total, bias, heads: int, kv_heads: int):
    settings = {"num_heads": heads, "kv_num_heads": kv_heads}
    return _microsoft(
        "GroupQueryAttention",
        q,
        k,
        v,
        k_cache,
        v_cache,
        last,
        total,
        None,
        None,
        None,
        bias,
        outputs=3,
        **settings,
    )


TRANSLATIONS = {
    torch.ops.voxport.matmul_nbits.default: _translate_matmul,
    torch.ops.voxport.rolling_attention.default: _translate_rolling,
    torch.ops.voxport.group_query_attention.default: _translate_attention,
}


class OnnxLowering(Lowering):
    """One `.onnx` and one file of weights per graph, each weight in it once."""

    target = "onnx"
    layout = SharedBufferAttention.layout
    linear_kernel = staticmethod(int8_per_block)
    runners = ("ONNX Runtime",)
    max_batch = 4
    integer_kernels = True
    packages = ("torch", "torchao", "onnx", "onnxscript", "onnxruntime")

    def entry_point(self, component: Component) -> EntryPoint:
        return EntryPoint(f"{component.graph}.onnx", component.graph)

    def lower(self, graph: Graph, folder: Path) -> None:
        name = f"{graph.name}.onnx"
        model = self._convert(graph)
        _move_out(model, folder / f"{name}.data")
        _strip(model, graph.name)
        ir.save(model, folder / name)

    def _convert(self, graph: Graph) -> ir.Model:
        component = graph.widest
        inputs, states = [*graph.trace_inputs().values()], zero_states(component)
        dynamic = dynamic_shapes(component)
        if graph.batched:
            streams = torch.export.Dim("B", min=1, max=self.max_batch)
            inputs, states = (
                [tensor.expand(TRACE_STREAMS, *tensor.shape[1:]).clone() for tensor in tensors]
                for tensors in (inputs, states)
            )
            dynamic = [{0: streams, **axes} for axes in dynamic] + [{0: streams}] * len(states)
        else:
            dynamic += [{}] * len(states)
        try:
            with (
                warnings.catch_warnings(),
                quiet_logs("torch.onnx", "onnxscript"),
                linear_kernel(graph.module, lower_linear),
                attention_kernel(graph.module, SharedBufferAttention()),
            ):
                warnings.simplefilter("ignore")
                arguments = (*inputs, *states)
                # strict: no; the graphs take their states as *args, which strict tracing renames
                program = torch.export.export(
                    graph.module, arguments, dynamic_shapes=_nest(dynamic, len(states)), strict=False
                )
                names = [state.name for state in component.signature.states]
                onnx_program = torch.onnx.export(
                    program,
                    dynamo=True,
                    opset_version=OPSET,
                    input_names=[
                        *(spec.name for spec in component.signature.inputs),
                        *(f"{ONNX_PAST}{name}" for name in names),
                    ],
                    output_names=[
                        *(spec.name for spec in component.signature.outputs),
                        *(f"{ONNX_PRESENT}{name}" for name in names),
                    ],
                    custom_translation_table=TRANSLATIONS,
                    verbose=False,
                )
        except ExportError:
            raise
        except Exception as error:
            raise ExportError(
                f"{graph.name}: ONNX export failed: {type(error).__name__}: {first_line(error)}"
            ) from error
        model = onnx_program.model
        _pack_weights(model)
        _name_dimensions(model, dynamic)
        return model


def _nest(dynamic: list[dict], n_states: int) -> Any:
    """dynamic_shapes as torch.export wants them for `forward(a, b, *states)`."""
    shapes = tuple(axes or None for axes in dynamic)
    return (*shapes[:-n_states], shapes[-n_states:]) if n_states else shapes


def _pack_weights(model: ir.Model) -> None:
    """Turns the int8 [N, K] input of each MatMulNBits into the operator's own packing, when it is written out."""
    packed: dict[tuple[str, int, int], ir.Value] = {}
    for node in model.graph:
        if node.op_type != "MatMulNBits":
            continue
        source, bits, block = (
            node.inputs[1],
            node.attributes["bits"].as_int(),
            node.attributes["block_size"].as_int(),
        )
        key = (source.name, bits, block)
        if key not in packed:
            packed[key] = _packed_value(source, bits, block)
            model.graph.register_initializer(packed[key])
        node.replace_input_with(1, packed[key])
    for name, _, _ in packed:
        if not (source := model.graph.initializers[name]).uses():
            del model.graph.initializers[name]
            source.const_value = (
                None  # patterns of the exporter hold graphs that they have seen, and values that were in them
            )


def _packed_value(source: ir.Value, bits: int, block: int) -> ir.Value:
    rows, columns = source.const_value.shape
    shape, name = ir.Shape([rows, -(-columns // block), block * bits // 8]), f"{source.name}.packed"
    tensor = source.const_value
    lazy = ir.LazyTensor(
        lambda: ir.Tensor(pack(tensor.numpy(), bits, block), name=name, shape=shape),
        dtype=ir.DataType.UINT8,
        shape=shape,
        name=name,
    )
    return ir.Value(name=name, const_value=lazy, shape=shape, type=ir.TensorType(ir.DataType.UINT8))


def pack(integers: np.ndarray, bits: int, block: int) -> np.ndarray:
    """int8 [N, K] -> uint8 [N, ceil(K / block), block·bits / 8]: offset by the zero point, two nibbles a byte, low first."""
    zero = 1 << (bits - 1)
    rows, columns = integers.shape
    shifted = np.pad(
        integers.astype(np.int16) + zero, ((0, 0), (0, -columns % block)), constant_values=zero
    ).astype(np.uint8)
    blocks = shifted.reshape(rows, -1, block)
    return blocks if bits == 8 else blocks[..., 0::2] | (blocks[..., 1::2] << 4)


def unpack(packed: np.ndarray, bits: int, columns: int) -> np.ndarray:
    """Inverse of `pack`: uint8 [N, blocks, bytes] -> int8 [N, columns]."""
    zero = 1 << (bits - 1)
    if bits == 4:
        packed = np.stack((packed & 15, packed >> 4), axis=-1).reshape(*packed.shape[:2], -1)
    return (packed.astype(np.int16) - zero).astype(np.int8).reshape(packed.shape[0], -1)[:, :columns]


def _name_dimensions(model: ir.Model, dynamic: list[dict]) -> None:
    """torch's own names of sizes (`s79`) become the component's. Shapes inside the graph are left to ONNX Runtime."""
    names = {
        str(value.shape[axis]): dim.__name__
        for value, axes in zip(model.graph.inputs, dynamic, strict=False)
        for axis, dim in axes.items()
    }
    kept = {*model.graph.inputs, *model.graph.outputs}
    for value in (output for node in model.graph for output in node.outputs):
        if value not in kept:
            value.shape = None
    for value in kept:
        sizes = [str(size) if isinstance(size, ir.SymbolicDim) else size for size in value.shape]
        value.shape = ir.Shape(
            [
                re.sub(r"\bs\d+\b", lambda m: names.get(m[0], m[0]), size) if isinstance(size, str) else size
                for size in sizes
            ]
        )


def _strip(model: ir.Model, name: str) -> None:
    """Takes out what names the exporting machine or changes from run to run."""
    passes.ClearMetadataAndDocStringPass()(model)
    model.producer_name, model.producer_version, model.graph.name = "voxport", "", name
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for part in [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values(), *model.graph]:
        part.metadata_props.clear()


def _move_out(model: ir.Model, path: Path) -> None:
    """Writes the large constants into a file, equal bytes once; holds one tensor at a time."""
    offsets: dict[bytes, int] = {}
    with path.open("wb") as file:
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor.nbytes < INLINE_BELOW:
                continue
            data = tensor.tobytes()
            key = hashlib.sha256(data).digest()
            if key not in offsets:
                file.write(b"\0" * (-file.tell() % ALIGNMENT))
                offsets[key] = file.tell()
                file.write(data)
            value.const_value = ir.ExternalTensor(
                path.name,
                offsets[key],
                len(data),
                tensor.dtype,
                shape=tensor.shape,
                name=value.name,
                base_dir=path.parent,
            )
