"""Changes of a translated graph, in place: fewer operators, wider convolutions, half precision."""

from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as passes
from onnxscript.optimizer import fold_constants_ir
from onnxscript.rewriter import RewriteRuleSet, rewrite
from onnxscript.rewriter.rules import common

from voxport.bundle.spec import ONNX_PAST, ONNX_PRESENT
from voxport.export.targets.onnx.kernels import FLOAT_ACTIVATIONS
from voxport.export.targets.onnx.patches import SLICES_TO_SPLIT

ROUNDS = 2
AXIS = 2  # values [B, C, T] and weights [C', C / groups, kernel] get an axis of size 1 here
PER_AXIS = ("dilations", "strides", "kernel_shape")
SUFFIXES = {ir.DataType.FLOAT16: "half", ir.DataType.FLOAT: "single"}  # suffixes of value names in artifacts


# The rules that match graphs of torch. With all 46 rules of the exporter the published code predictor of
# Qwen3-TTS takes twice as long to lower, and ONNX Runtime fuses the rest when it loads a graph.
RULES = RewriteRuleSet(
    [
        common.add_0_rule,
        common.cast_cast_rule,
        common.collapse_slice2_rule,
        common.collapse_slice_rule,
        common.div_by_1_rule,
        common.materialize_reshape_shape_rule,
        common.mul_by_1_rule,
        common.no_op_cast_rule,
        common.no_op_expand_rule,
        common.no_op_transpose_rule,
        common.reshape_reshape_rule,
        SLICES_TO_SPLIT,
        common.squeeze_reshape_1d_rule,
        common.sub_0_rule,
        common.transpose_transpose_rule,
        common.unsqueeze_unsqueeze_rule,
    ]
)


def simplify(model: ir.Model) -> None:
    """Changes `model` in place. Its functions become nodes of the graph."""
    passes.InlinePass()(model)
    for _ in range(ROUNDS):
        fold_constants_ir(model)
        rewrite(model, RULES)
    for part in (
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.OutputFixPass(),
        passes.NameFixPass(),
    ):
        part(model)


def widen_convolutions(model: ir.Model) -> None:
    """Runs every convolution of values [B, C, T] on [B, C, 1, T]. Changes `model` in place.

    With one axis ONNX Runtime multiplies by weights that are not packed: five times as slow if T is 4.
    """
    nodes = [node for node in model.graph if node.op_type == "Conv" and len(_weight(node).shape) == AXIS + 1]
    if not nodes:
        return
    axes = _constant([AXIS], "convolution.axes")
    model.graph.register_initializer(axes)
    for weight in {_weight(node).name: _weight(node) for node in nodes}.values():
        _widen_weight(weight)
    for node in nodes:
        _widen_node(model.graph, node, axes)


def _weight(node: ir.Node) -> Any:  # Any: onnx_ir types every input, shape and name as optional
    return node.inputs[1]


def _constant(values: list[int], name: str) -> ir.Value:
    tensor = ir.tensor(values, dtype=ir.DataType.INT64, name=name)
    return ir.Value(
        name=name, const_value=tensor, shape=ir.Shape([len(values)]), type=ir.TensorType(tensor.dtype)
    )


def _widen_weight(weight: Any) -> None:
    tensor, shape = weight.const_value, ir.Shape([*weight.shape[:AXIS], 1, *weight.shape[AXIS:]])
    weight.const_value = ir.LazyTensor(
        lambda: ir.Tensor(tensor.numpy().reshape(shape.numpy()), name=weight.name, shape=shape),
        dtype=tensor.dtype,
        shape=shape,
        name=weight.name,
    )
    weight.shape = shape


def _widen_node(graph: ir.Graph, node: ir.Node, axes: ir.Value) -> None:
    attributes = node.attributes
    for name in PER_AXIS:
        if name in attributes:
            attributes[name] = ir.AttrInt64s(name, [1, *attributes[name].as_ints()])
    if "pads" in attributes:
        before, after = attributes["pads"].as_ints()
        attributes["pads"] = ir.AttrInt64s("pads", [0, before, 0, after])
    x: Any = node.inputs[0]  # see `_weight`
    (y,) = node.outputs
    widened = ir.node("Unsqueeze", [x, axes], name=f"{node.name}.widen")
    narrowed = ir.node("Squeeze", [y, axes], name=f"{node.name}.narrow")
    wide_x, narrow_y = widened.outputs[0], narrowed.outputs[0]
    wide_x.name, narrow_y.name, y.name = f"{y.name}.input", y.name, f"{y.name}.wide"
    wide_x.type, narrow_y.type, narrow_y.shape, y.shape = x.type, y.type, y.shape, None
    y.replace_all_uses_with(narrow_y, replace_graph_outputs=True)
    narrowed.replace_input_with(0, y)
    node.replace_input_with(0, wide_x)
    graph.insert_before(node, widened)
    graph.insert_after(node, narrowed)


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
    _convert_interface(graph, ir.DataType.FLOAT16, ir.DataType.FLOAT, states=False)


def states_to_float16(model: ir.Model) -> None:
    """Makes the states float16, and nothing else."""
    _convert_interface(model.graph, ir.DataType.FLOAT, ir.DataType.FLOAT16, states=True)


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


def _convert_interface(graph: ir.Graph, old: ir.DataType, new: ir.DataType, states: bool) -> None:
    """Gives inputs and outputs of one dtype another one: the states, or all others. Their names stay."""
    inputs: list[Any] = list(graph.inputs)  # see `_weight`
    for value in inputs:
        if value.dtype is old and value.name.startswith(ONNX_PAST) is states:
            cast = _cast(value, old, f"{value.name}.{SUFFIXES[old]}")
            value.replace_all_uses_with(cast.outputs[0])
            cast.replace_input_with(0, value)
            value.dtype = new
            graph.insert_before(graph[0], cast)
    outputs: list[Any] = list(graph.outputs)
    for index, value in enumerate(outputs):
        if value.dtype is old and value.name.startswith(ONNX_PRESENT) is states:
            name = value.name
            value.name = f"{name}.{SUFFIXES[old]}"
            cast = _cast(value, new, name)
            graph.append(cast)
            graph.outputs[index] = cast.outputs[0]


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
