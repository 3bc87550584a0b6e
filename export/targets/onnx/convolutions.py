"""Convolutions of sequences get a second axis, because ONNX Runtime packs weights only for two."""

from typing import Any

import onnx_ir as ir

AXIS = 2  # where values [B, C, T] and weights [C', C / groups, kernel] get an axis of size 1
PER_AXIS = ("dilations", "strides", "kernel_shape")


def widen_convolutions(model: ir.Model) -> None:
    """Runs every convolution of values [B, C, T] on [B, C, 1, T]. Changes `model` in place.

    With one axis ONNX Runtime multiplies by weights that are not packed: five times as slow where T is 4.
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
