"""Lowering of one graph to ONNX: traced by torch, converted by its exporter, stripped of everything that
varies.
"""

import hashlib
import inspect
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch

from voxport.bundle.manifest import Precision
from voxport.bundle.spec import ONNX_PAST, ONNX_PRESENT, StateSpec
from voxport.export.targets.base import Graph
from voxport.export.targets.onnx.kernels import (
    TRANSLATIONS,
    SharedBufferAttention,
    lower_linear,
    lower_to_blocks,
)
from voxport.export.targets.onnx.rewrites import (
    simplify,
    states_to_float16,
    to_float16,
    use_float_activations,
    widen_convolutions,
)
from voxport.export.targets.shared import (
    dynamic_shapes,
    export_errors,
    target_kernels,
    trace_inputs,
    without_warnings,
    zero_states,
)

OPSET = 23
TRACE_BATCH = 3  # batch size while tracing
INLINE_BELOW = 1024  # bytes; smaller constants stay in the graph
SCALE = 3  # the input of `MatMulIntegerToFloat` with the scale of the weight
ROWS = "L"  # name of the dimension of a cache's rows
ALIGNMENT = 4096  # bytes; a page, so that a runtime may map each weight
Axes = list[dict[int, torch.export.Dim]]


def lower_graph(graph: Graph, folder: Path, max_batch: int, precision: Precision) -> None:
    """Writes `GRAPH.onnx` and `GRAPH.onnx.data`. Raises ExportError."""
    name = f"{graph.name}.onnx"
    inputs, dynamic = _trace_arguments(graph, max_batch)
    with export_errors(f"{graph.name}: ONNX export failed"):
        model = _convert(graph, inputs, dynamic, precision)
    pack_weights(model)
    if precision == "float16":
        use_float_activations(model)
        (states_to_float16 if graph.exceeds_float16 else to_float16)(model)
    else:
        widen_convolutions(model)
    _name_dimensions(model, dynamic)
    move_large_constants(model, folder / f"{name}.data")
    _strip(model, graph.name)
    ir.save(model, folder / name)


def _trace_arguments(graph: Graph, max_batch: int) -> tuple[list[torch.Tensor], Axes]:
    """Inputs and then states of the first component, and their dynamic dimensions."""
    component = graph.first
    tensors = [*trace_inputs(component), *zero_states(component)]
    dynamic: Axes = [*dynamic_shapes(component), *map(_free_rows, component.signature.states)]
    if any(part.batched for part in graph.components):
        batch = torch.export.Dim("B", min=1, max=max_batch)
        tensors = [tensor.expand(TRACE_BATCH, *tensor.shape[1:]).clone() for tensor in tensors]
        dynamic = [{0: batch, **axes} for axes in dynamic]
    return tensors, dynamic


def _free_rows(state: StateSpec) -> dict[int, torch.export.Dim]:
    """The rows of a cache that ends, so that an engine which copies caches need not pass all of them."""
    if not state.cache or state.cache.window:
        return {}
    return {state.cache.row_axis: torch.export.Dim(ROWS, max=state.rows)}


def _convert(graph: Graph, arguments: list[torch.Tensor], dynamic: Axes, precision: Precision) -> ir.Model:
    signature = graph.first.signature
    linear_kernel = lower_linear if precision == "float32" else lower_to_blocks
    names = [state.name for state in signature.states]
    with (
        without_warnings("torch.onnx", "onnxscript"),
        target_kernels(graph.module, linear_kernel, SharedBufferAttention()),
    ):
        # not strict, because strict tracing renames states, which modules take as *args
        program = torch.export.export(
            graph.module,
            tuple(arguments),
            dynamic_shapes=_by_parameter(graph.module, dynamic),
            strict=False,
        )
        converted: Any = torch.onnx.export(
            program,
            dynamo=True,
            opset_version=OPSET,
            input_names=[
                *(spec.name for spec in signature.inputs),
                *(f"{ONNX_PAST}{name}" for name in names),
            ],
            output_names=[
                *(spec.name for spec in signature.outputs),
                *(f"{ONNX_PRESENT}{name}" for name in names),
            ],
            custom_translation_table=TRANSLATIONS,
            optimize=False,
            verbose=False,
        )
    model: ir.Model = converted.model
    simplify(model)
    return model


def _by_parameter(module: torch.nn.Module, dynamic: Axes) -> tuple[Any, ...]:
    """`dynamic` as torch.export takes it: one item per parameter, and a tuple for `*states`."""
    bound = inspect.signature(module.forward).bind(*(axes or None for axes in dynamic))
    return tuple(bound.arguments.values())


def _name_dimensions(model: ir.Model, dynamic: Axes) -> None:
    """Replaces the names of sizes that torch made up (`s79`) by the names of the component.

    Shapes of values inside the graph are removed; ONNX Runtime infers them.
    """
    names = {
        str(_shape(value)[axis]): dim.__name__
        for value, axes in zip(model.graph.inputs, dynamic, strict=False)
        for axis, dim in axes.items()
    }
    renamed = partial(re.compile(r"\bs\d+\b").sub, lambda match: names.get(match[0], match[0]))
    kept = {*model.graph.inputs, *model.graph.outputs}
    for value in (output for node in model.graph for output in node.outputs):
        if value not in kept:
            value.shape = None
    for value in kept:
        value.shape = ir.Shape(
            [size if isinstance(size, int) else renamed(str(size)) for size in _shape(value)]
        )


def _shape(value: ir.Value) -> ir.Shape:
    assert value.shape is not None  # every input and output has a shape
    return value.shape


def _strip(model: ir.Model, name: str) -> None:
    """Removes what names the exporting machine or differs from run to run."""
    passes.ClearMetadataAndDocStringPass()(model)
    model.producer_name, model.producer_version, model.graph.name = "voxport", "", name
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for part in [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values(), *model.graph]:
        part.metadata_props.clear()


def pack_weights(model: ir.Model) -> None:
    """Replaces the int8 [N, K] weight of each quantised linear by one in the operator's packing, computed
    when it is written. The scale [N, 1] of `MatMulIntegerToFloat` becomes [N].

    A reshape in the graph would be folded by the exporter for small scales only.
    """
    packed: dict[tuple[str, int, int | None], ir.Value] = {}
    for node in (node for node in model.graph if node.op_type in ("MatMulNBits", "MatMulIntegerToFloat")):
        source: Any = node.inputs[1]  # a named constant; onnx_ir types every input and name as optional
        bits, block = 8, None
        if node.op_type == "MatMulNBits":
            bits, block = (node.attributes[name].as_int() for name in ("bits", "block_size"))
        key = (source.name, bits, block)
        if key not in packed:
            packed[key] = _packed_value(source, bits, block)
            model.graph.register_initializer(packed[key])
        node.replace_input_with(1, packed[key])
        if node.op_type == "MatMulIntegerToFloat":
            scale: Any = node.inputs[SCALE]
            scale.const_value = ir.tensor(scale.const_value.numpy().reshape(-1), name=scale.name)
            scale.shape = ir.Shape(scale.const_value.shape)
    for name, _, _ in packed:
        if not (replaced := model.graph.initializers[name]).uses():
            del model.graph.initializers[name]
            replaced.const_value = None  # rewrite patterns of the exporter keep graphs and values alive


def _packed_value(source: Any, bits: int, block: int | None) -> ir.Value:
    tensor, name = source.const_value, f"{source.name}.packed"
    rows, columns = tensor.shape
    shape = ir.Shape([rows, -(-columns // block), block * bits // 8] if block else [columns, rows])
    lazy = ir.LazyTensor(
        lambda: ir.Tensor(pack(tensor.numpy(), bits, block), name=name, shape=shape),
        dtype=ir.DataType.UINT8,
        shape=shape,
        name=name,
    )
    return ir.Value(name=name, const_value=lazy, shape=shape, type=ir.TensorType(ir.DataType.UINT8))


def pack(integers: npt.NDArray[np.int8], bits: int, block: int | None) -> npt.NDArray[np.uint8]:
    """int8 [N, K] -> uint8, offset by the zero point.

    In blocks [N, ceil(K / block), block·bits / 8]: of two 4-bit values in a byte, the first is in the low
    half. Without blocks [K, N].
    """
    zero = 1 << (bits - 1)
    if block is None:
        return np.ascontiguousarray((integers.view(np.uint8) ^ zero).T)
    padding = ((0, 0), (0, -integers.shape[1] % block))
    shifted = np.pad(integers.astype(np.int16) + zero, padding, constant_values=zero).astype(np.uint8)
    blocks = shifted.reshape(len(integers), -1, block)
    if bits == 8:
        return blocks
    return (blocks[..., 0::2] | (blocks[..., 1::2] << 4)).astype(np.uint8)


def move_large_constants(model: ir.Model, path: Path) -> None:
    """Writes large constants to the file `path`, equal bytes once, one tensor in memory at a time."""
    offsets: dict[bytes, int] = {}
    with path.open("wb") as file:
        for value in model.graph.initializers.values():
            tensor: Any = value.const_value  # an initializer has a value; onnx_ir types it as optional
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
                name=str(value.name),
                base_dir=path.parent,
            )
