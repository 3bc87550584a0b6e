"""Conversion of a float32 graph to float16: constants, values and states. Inputs and outputs stay float32.

A graph whose values exceed half precision keeps float32; only its states are float16, as in other graphs.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from voxport.bundle.spec import ONNX_PAST, ONNX_PRESENT

FLOAT_ACTIVATIONS = 1  # accuracy level of MatMulNBits: it multiplies dequantised weights, as CUDA does
SUFFIXES = {ir.DataType.FLOAT16: "half", ir.DataType.FLOAT: "single"}  # of value names, in artifacts


def to_float16(model: ir.Model) -> None:
    """Every operator of the graphs takes float16, so only constants and types change.

    Outputs are named as before. Constants must be representable: the weights are rounded when they are
    loaded.
    """
    graph = model.graph
    for node in graph:
        _convert_attributes(node)
    for value in graph.initializers.values():
        if value.dtype is ir.DataType.FLOAT:
            value.const_value = _as_float16(value.const_value, value.name)
    values = (output for node in graph for output in node.outputs)
    for value in [*graph.inputs, *graph.initializers.values(), *values]:
        if value.dtype is ir.DataType.FLOAT:
            value.dtype = ir.DataType.FLOAT16
    for value in list(graph.inputs):
        if value.dtype is ir.DataType.FLOAT16 and not _name(value).startswith(ONNX_PAST):
            _convert_input(graph, value, ir.DataType.FLOAT)
    for index, value in enumerate(graph.outputs):
        if value.dtype is ir.DataType.FLOAT16 and not _name(value).startswith(ONNX_PRESENT):
            graph.outputs[index] = _converted_output(graph, value, ir.DataType.FLOAT)


def states_to_float16(model: ir.Model) -> None:
    """Makes the states float16, and nothing else."""
    graph = model.graph
    for value in list(graph.inputs):
        if value.dtype is ir.DataType.FLOAT and _name(value).startswith(ONNX_PAST):
            _convert_input(graph, value, ir.DataType.FLOAT16)
    for index, value in enumerate(graph.outputs):
        if value.dtype is ir.DataType.FLOAT and _name(value).startswith(ONNX_PRESENT):
            graph.outputs[index] = _converted_output(graph, value, ir.DataType.FLOAT16)


def use_float_activations(model: ir.Model) -> None:
    """No product of quantised weights rounds its activations."""
    for node in model.graph:
        if node.op_type == "MatMulNBits":
            node.attributes["accuracy_level"] = ir.AttrInt64("accuracy_level", FLOAT_ACTIVATIONS)


def _convert_attributes(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type is ir.AttributeType.TENSOR and attribute.as_tensor().dtype is ir.DataType.FLOAT:
            node.attributes[name] = ir.AttrTensor(name, _as_float16(attribute.as_tensor(), None))
    if node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT:
        node.attributes["to"] = ir.AttrInt64("to", ir.DataType.FLOAT16)


def _convert_input(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> None:
    """Gives an input another dtype; the graph uses it as before."""
    inside = _dtype(value)
    cast = _cast(value, inside, f"{value.name}.{SUFFIXES[inside]}")
    value.replace_all_uses_with(cast.outputs[0])
    cast.replace_input_with(0, value)
    value.dtype = dtype
    graph.insert_before(graph[0], cast)


def _converted_output(graph: ir.Graph, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """An output of another dtype, which has the name of `value`."""
    name = _name(value)
    value.name = f"{name}.{SUFFIXES[_dtype(value)]}"
    cast = _cast(value, dtype, name)
    graph.append(cast)
    return cast.outputs[0]


def _cast(value: ir.Value, dtype: ir.DataType, name: str) -> ir.Node:
    output = ir.Value(name=name, type=ir.TensorType(dtype), shape=value.shape)
    return ir.Node("", "Cast", [value], [ir.AttrInt64("to", dtype)], outputs=[output], name=name)


def _as_float16(tensor: Any, name: str | None) -> ir.LazyTensor:  # Any: onnx_ir has several tensor classes
    """Converted when it is written, so that one weight at a time is in memory twice."""
    return ir.LazyTensor(
        lambda: ir.Tensor(tensor.numpy().astype(np.float16), name=name),
        dtype=ir.DataType.FLOAT16,
        shape=tensor.shape,
        name=name,
    )


def _name(value: ir.Value) -> str:
    assert value.name is not None  # inputs and outputs are named
    return value.name


def _dtype(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None  # inputs and outputs are typed
    return value.dtype
