"""Reads a saved package and compares it with the graph that it was made from, without executing it.

Functions are read one at a time, because the weights of all functions do not fit into memory for the
published model.
"""

from pathlib import Path
from typing import Any

from bundle.errors import ExportError, first_line
from bundle.manifest import Precision
from bundle.spec import TensorSpec, coreml_state_name
from export.memory import free_memory
from export.targets.base import Graph
from export.targets.coreml.package import MODEL, blob_values
from export.targets.coreml.stored_weights import check_weights, read_program, stored_weights
from export.targets.coreml.tools import OPSET, OPSET_NAME, SSAOpRegistry, ct
from model.component import Component

STATE_OPS = {"write_state"}  # what coremltools calls `coreml_update_state`
ArrayType = ct.proto.FeatureTypes_pb2.ArrayFeatureType
ARRAY_TYPES = {"float32": ArrayType.FLOAT32, "int64": ArrayType.INT32}
# Any in this module: protobuf messages, whose classes coremltools generates without types.


def check_package(path: Path, graph: Graph, precision: Precision = "float16") -> None:
    """Compares the functions of a saved package with the components of `graph`. Raises ExportError with the
    first difference.

    Weights are compared once for all functions whose operations take the same blobs in the same order.
    """
    compared: list[list[list[int]]] = []
    for component in graph.components:
        where = f"{path.name}: function {component.name}"
        try:
            blobs = _check_function(where, path, component, precision)
            if blobs not in compared:
                found = stored_weights(read_program(path, component.name), component.name)
                check_weights(where, found, component, graph.module)
                del found
        except ExportError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            raise ExportError(f"{path.name}: cannot be read back: {reason}") from error
        compared.append(blobs)
        free_memory()  # before the program of the next function is read


def _check_function(where: str, path: Path, component: Component, precision: Precision) -> list[list[int]]:
    """Compares everything but the weights. Returns the offsets of the blobs of each operation."""
    spec = ct.utils.load_spec(str(path / MODEL))
    described = {function.name: function for function in spec.description.functions}
    if component.name not in described or component.name not in spec.mlProgram.functions:
        raise ExportError(f"{where}: missing; there are {', '.join(described) or 'none'}")
    function = spec.mlProgram.functions[component.name]
    block = function.block_specializations[function.opset]
    _check_inputs_and_states(where, described[component.name], component)
    _check_outputs(where, described[component.name], block, component)
    _compare(where, "opset", function.opset, OPSET_NAME)
    products = [op.outputs[0].type.tensorType for op in block.operations if op.type in ("linear", "matmul")]
    if products:
        is_float16 = any(tensor.dataType == ct.proto.MIL_pb2.FLOAT16 for tensor in products)
        _compare(where, "compute precision", "float16" if is_float16 else "float32", precision)
    types = {op.type for op in block.operations}
    foreign = {kind for kind in types if OPSET not in SSAOpRegistry.core_ops.get(kind, ())} - STATE_OPS
    _compare(where, "operators outside iOS 18", sorted(foreign), [])
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


def _compare(where: str, what: str, found: Any, expected: Any) -> None:
    if found != expected:
        raise ExportError(f"{where}: {what}: found {found}, expected {expected}")


def _check_inputs_and_states(where: str, described: Any, component: Component) -> None:
    """Compares names, dtypes and bounds."""
    signature = component.signature
    inputs = {part.name: _described(part.type.multiArrayType) for part in described.input}
    expected = {spec.name: (ARRAY_TYPES[spec.dtype], bounds_of(spec, component)) for spec in signature.inputs}
    _compare(where, "inputs", inputs, expected)
    states = {part.name: _described(part.type.stateType.arrayType) for part in described.state}
    expected = {
        coreml_state_name(component.graph, state.name): (
            ArrayType.FLOAT16,
            [(size, size) for size in state.shape],
        )
        for state in signature.states
    }
    _compare(where, "states", states, expected)


def _check_outputs(where: str, described: Any, block: Any, component: Component) -> None:
    """Compares names, dtypes and fixed sizes. The package does not state the size of a dynamic dimension."""
    signature = component.signature
    found = {part.name: part.type.multiArrayType.dataType for part in described.output}
    _compare(where, "outputs", found, {spec.name: ARRAY_TYPES[spec.dtype] for spec in signature.outputs})
    types = {out.name: out.type.tensorType for op in block.operations for out in op.outputs}
    dynamic = str(signature.dims)
    shapes = [
        (
            name,
            [size.constant.size if size.HasField("constant") else dynamic for size in types[name].dimensions],
        )
        for name in block.outputs
    ]
    expected = [
        (spec.name, [size if isinstance(size, int) else dynamic for size in spec.shape])
        for spec in signature.outputs
    ]
    _compare(where, "shapes of outputs", shapes, expected)


def _described(array: Any) -> tuple[int, list[tuple[int, int]]]:
    """Dtype, and the bounds of every axis."""
    ranges = [(size.lowerBound, size.upperBound) for size in array.shapeRange.sizeRanges]
    return array.dataType, ranges or [(size, size) for size in array.shape]


def bounds_of(spec: TensorSpec, component: Component) -> list[tuple[int, int]]:
    """Smallest and largest size of every axis of an input."""
    return [(size, size) if isinstance(size, int) else component.signature.dims[size] for size in spec.shape]
