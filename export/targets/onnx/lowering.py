"""Lowering of one graph to ONNX: traced by torch, converted by its exporter, stripped of everything that
varies.
"""

import inspect
import re
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnx_ir.passes.common as passes
import torch

from bundle.spec import ONNX_PAST, ONNX_PRESENT
from export.targets.base import Graph
from export.targets.onnx.attention import SharedBufferAttention
from export.targets.onnx.operators import TRANSLATIONS
from export.targets.onnx.weights import lower_linear, move_large_constants, pack_weights
from export.targets.tracing import (
    dynamic_shapes,
    export_errors,
    quiet,
    target_kernels,
    trace_inputs,
    zero_states,
)

OPSET = 23
TRACE_BATCH = 3  # batch size while tracing
Axes = list[dict[int, torch.export.Dim]]


def lower_graph(graph: Graph, folder: Path, max_batch: int) -> None:
    """Writes `GRAPH.onnx` and `GRAPH.onnx.data`. Raises ExportError."""
    name = f"{graph.name}.onnx"
    inputs, dynamic = _trace_arguments(graph, max_batch)
    with export_errors(graph, "ONNX export"):
        model = _convert(graph, inputs, dynamic)
    pack_weights(model)
    _name_dimensions(model, dynamic)
    move_large_constants(model, folder / f"{name}.data")
    _strip(model, graph.name)
    ir.save(model, folder / name)


def _trace_arguments(graph: Graph, max_batch: int) -> tuple[list[torch.Tensor], Axes]:
    """Inputs and then states of the first component, and their dynamic dimensions."""
    component = graph.first
    tensors = [*trace_inputs(component), *zero_states(component)]
    dynamic = dynamic_shapes(component)
    dynamic += [{} for _ in component.signature.states]
    if graph.batched:
        batch = torch.export.Dim("B", min=1, max=max_batch)
        tensors = [tensor.expand(TRACE_BATCH, *tensor.shape[1:]).clone() for tensor in tensors]
        dynamic = [{0: batch, **axes} for axes in dynamic]
    return tensors, dynamic


def _convert(graph: Graph, arguments: list[torch.Tensor], dynamic: Axes) -> ir.Model:
    signature = graph.first.signature
    names = [state.name for state in signature.states]
    kernels = target_kernels(graph.module, lower_linear, SharedBufferAttention())
    with quiet("torch.onnx", "onnxscript"), kernels:
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
            verbose=False,
        )
    model: ir.Model = converted.model
    return model


def _by_parameter(module: torch.nn.Module, dynamic: Axes) -> tuple[Any, ...]:
    """`dynamic` as torch.export takes it: one item per parameter, and a tuple for `*states`."""
    shapes = (axes or None for axes in dynamic)
    return tuple(inspect.signature(module.forward).bind(*shapes).arguments.values())


def _name_dimensions(model: ir.Model, dynamic: Axes) -> None:
    """Replaces the names of sizes that torch made up (`s79`) by those of the component.

    Shapes of values inside the graph are removed; ONNX Runtime infers them.
    """
    names = {
        str(_shape(value)[axis]): dim.__name__
        for value, axes in zip(model.graph.inputs, dynamic, strict=False)
        for axis, dim in axes.items()
    }
    kept = {*model.graph.inputs, *model.graph.outputs}
    for value in (output for node in model.graph for output in node.outputs):
        if value not in kept:
            value.shape = None
    for value in kept:
        value.shape = ir.Shape([_renamed(size, names) for size in _shape(value)])


def _shape(value: ir.Value) -> ir.Shape:
    assert value.shape is not None  # every input and output has a shape
    return value.shape


def _renamed(size: int | ir.SymbolicDim, names: dict[str, str]) -> int | str:
    if isinstance(size, int):
        return size
    return re.sub(r"\bs\d+\b", lambda match: names.get(match[0], match[0]), str(size))


def _strip(model: ir.Model, name: str) -> None:
    """Removes what names the exporting machine or differs from run to run."""
    passes.ClearMetadataAndDocStringPass()(model)
    model.producer_name, model.producer_version, model.graph.name = "voxport", "", name
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for part in [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values(), *model.graph]:
        part.metadata_props.clear()
