"""Reads a saved package and compares it with the graph that it was made from, without executing it.

Functions are read one at a time, because the weights of all functions do not fit into memory for the
published model.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from voxport.bundle.errors import ExportError
from voxport.bundle.manifest import Precision
from voxport.bundle.spec import graph_state_name
from voxport.export.memory import free_memory
from voxport.export.targets.apple import Array, Weight, called_modules, check_weight
from voxport.export.targets.base import Graph
from voxport.export.targets.coreml.lowering import CONTENT, MODEL, blob_values, bounds_of
from voxport.export.targets.coreml.tools import OPSET, OPSET_NAME, SSAOpRegistry, ct, load_program
from voxport.export.targets.shared import compare, export_errors, without_converter_output
from voxport.model.graph import Component

STATE_OPS = {"write_state"}  # what coremltools calls `coreml_update_state`
ArrayType = ct.proto.FeatureTypes_pb2.ArrayFeatureType
ARRAY_TYPES = {"float32": ArrayType.FLOAT32, "int64": ArrayType.INT32, "int32": ArrayType.INT32}
# Integers and scales of a constant expression, or indices and palettes.
READERS: dict[str, Callable[[Any], tuple[Array, Array]]] = {
    "constexpr_lut_to_dense": lambda op: (
        op.indices.val.astype(np.uint8),
        op.lut.val[:, 0, :, 0].astype(np.float32),
    ),
    "constexpr_blockwise_shift_scale": lambda op: (
        op.data.val.astype(np.int8),
        op.scale.val.astype(np.float32),
    ),
}
# Any in this module: protobuf messages, and programs and operations of coremltools, which have no types.


def check_package(path: Path, graph: Graph, precision: Precision) -> None:
    """Compares the functions of a saved package with the components of `graph`. Raises ExportError with the
    first difference.

    Weights are compared once for all functions whose operations take the same blobs in the same order.
    """
    compared: list[list[list[int]]] = []
    for component in graph.components:
        where = f"{path.name}: function {component.name}"
        with export_errors(f"{path.name}: cannot be read back"):
            blobs = _check_function(where, path, component, precision)
            if blobs not in compared:
                _check_weights(where, stored_weights(path, component.name), component, graph.module)
        compared.append(blobs)
        free_memory()  # before the program of the next function is read


def _check_weights(where: str, found: Sequence[Weight], component: Component, module: nn.Module) -> None:
    """Compares the weights of a saved function with the module's. `where` starts the ExportError."""
    expected = called_modules(component, module)
    compare(where, "number of quantised weights", len(found), len(expected))
    for weight, (name, part) in zip(found, expected, strict=True):
        check_weight(f"{where}: the integers or scales of {name}", weight, part)


def _check_function(where: str, path: Path, component: Component, precision: Precision) -> list[list[int]]:
    """Compares everything but the weights. Returns the offsets of the blobs of each operation."""
    spec = ct.utils.load_spec(str(path / MODEL))
    described = {function.name: function for function in spec.description.functions}
    if component.name not in described or component.name not in spec.mlProgram.functions:
        raise ExportError(f"{where}: missing; there are {', '.join(described) or 'none'}")
    function = spec.mlProgram.functions[component.name]
    block = function.block_specializations[function.opset]
    _check_interface(where, described[component.name], block, component)
    compare(where, "opset", function.opset, OPSET_NAME)
    products = [op.outputs[0].type.tensorType for op in block.operations if op.type in ("linear", "matmul")]
    if products:
        is_float16 = any(tensor.dataType == ct.proto.MIL_pb2.FLOAT16 for tensor in products)
        compare(where, "compute precision", "float16" if is_float16 else "float32", precision)
    types = {op.type for op in block.operations} - STATE_OPS
    foreign = {kind for kind in types if OPSET not in SSAOpRegistry.core_ops.get(kind, ())}
    compare(where, "operators outside iOS 18", sorted(foreign), [])
    return _blob_offsets(block)


def _blob_offsets(block: Any) -> list[list[int]]:
    """Offsets of the blobs that each operation takes, also through constants. Operations without blobs are
    left out.
    """
    constants: dict[str, list[int]] = {}
    taken = []
    for op in block.operations:
        names = [
            argument.name
            for _, binding in sorted(op.inputs.items())
            for argument in binding.arguments
            if argument.HasField("name")
        ]
        offsets = [value.offset for value in blob_values(op)]
        offsets += [offset for name in names for offset in constants.get(name, ())]
        if op.type.startswith("const"):
            constants[op.outputs[0].name] = offsets
        elif offsets:
            taken.append(offsets)
    return taken


def _check_interface(where: str, described: Any, block: Any, component: Component) -> None:
    """Compares names, dtypes and sizes. The package does not state dynamic sizes of outputs."""
    outputs, dynamic = component.signature.outputs, str(component.signature.dims)
    found = {part.name: _described(part.type.multiArrayType) for part in described.input}
    inputs = component.signature.inputs
    expected = {spec.name: (ARRAY_TYPES[spec.dtype], bounds_of(spec, component)) for spec in inputs}
    compare(where, "inputs", found, expected)
    found = {part.name: _described(part.type.stateType.arrayType) for part in described.state}
    expected = {
        graph_state_name(component.graph, state.name): (
            ArrayType.FLOAT16,
            [(size, size) for size in state.shape],
        )
        for state in component.signature.states
    }
    compare(where, "states", found, expected)
    dtypes = {part.name: part.type.multiArrayType.dataType for part in described.output}
    compare(where, "outputs", dtypes, {spec.name: ARRAY_TYPES[spec.dtype] for spec in outputs})
    types = {out.name: out.type.tensorType for op in block.operations for out in op.outputs}
    shapes = [
        (
            name,
            [size.constant.size if size.HasField("constant") else dynamic for size in types[name].dimensions],
        )
        for name in block.outputs
    ]
    fixed = [
        (spec.name, [size if isinstance(size, int) else dynamic for size in spec.shape]) for spec in outputs
    ]
    compare(where, "shapes of outputs", shapes, fixed)


def _described(array: Any) -> tuple[int, list[tuple[int, int]]]:
    ranges = [(size.lowerBound, size.upperBound) for size in array.shapeRange.sizeRanges]
    return array.dataType, ranges or [(size, size) for size in array.shape]


def stored_weights(path: Path, function: str) -> list[Weight]:
    """Readers of the quantised weights of a function of a package, in the order of use.

    The weight of a product is a constant expression. A table is a gather of int8 rows, followed by a gather
    of their scales.
    """
    weights: list[Weight] = []
    table = None
    with without_converter_output():
        spec = ct.utils.load_spec(str(path / MODEL))
        for other in [name for name in spec.mlProgram.functions if name != function]:
            del spec.mlProgram.functions[other]
        program = load_program(spec, spec.specificationVersion, str(path / CONTENT / "weights"))
    for op in program.functions[function].operations:
        values = (value for value in op.inputs.values() if not isinstance(value, list | tuple))
        for source in (value.op for value in values if value.op):
            if source.op_type in READERS and source.inputs.get("offset") is None:
                weights.append(partial(READERS[source.op_type], source))
        if op.op_type == "gather" and table is not None:
            weights.append(partial(_tabular, table, op))
            table = None
        elif op.op_type == "gather" and op.x.val is not None and op.x.val.dtype == np.int8:
            table = op.x.val
    return weights


def _tabular(integers: Array, scales: Any) -> tuple[Array, Array]:
    return integers, scales.x.val.astype(np.float32)
