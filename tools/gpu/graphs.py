"""Changes of a graph that only a GPU needs, in place."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from voxport.bundle.spec import Signature

TOTAL = 6  # the input of GroupQueryAttention with the number of rows in use


def set_total(model: onnx.ModelProto, signature: Signature) -> None:
    """Every attention gets a constant number of rows in use, and finds the position of its rows by itself."""
    state = signature.cache
    if state is None or state.cache is None:
        return
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            is_biased, window = len(node.input) > TOTAL + 3, state.cache.window or 0
            rows = window - 1 + state.cache.rows_per_position if is_biased else state.rows
            name = f"total.{rows}"
            if all(each.name != name for each in model.graph.initializer):
                model.graph.initializer.append(numpy_helper.from_array(np.array([rows], np.int32), name))
            node.input[TOTAL] = name
    _remove_unused(model.graph)


def _remove_unused(graph: onnx.GraphProto) -> None:
    needed = {value.name for value in graph.output}
    kept = []
    for node in reversed(graph.node):  # they are in the order of their values
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    del graph.node[:]
    graph.node.extend(reversed(kept))


def to_bfloat16(model: onnx.ModelProto) -> None:
    """Constants and casts of float16; the sizes of states stay. In a graph of float32, the products."""
    if all(tensor.data_type != TensorProto.FLOAT16 for tensor in model.graph.initializer):
        _products_to_bfloat16(model.graph)
        return
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            _round(tensor)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.BFLOAT16
            if attribute.t.data_type == TensorProto.FLOAT16:
                _round(attribute.t)
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.BFLOAT16


def _products_to_bfloat16(graph: onnx.GraphProto) -> None:
    """Casts around each product, whose scales are bfloat16."""
    nodes, scales = [], set()
    for node in graph.node:
        if node.op_type != "MatMulNBits":
            nodes.append(node)
            continue
        (result,) = node.output
        scales.add(node.input[2])
        before, after = f"{result}.in", f"{result}.out"
        nodes.append(helper.make_node("Cast", node.input[:1], [before], to=TensorProto.BFLOAT16))
        node.input[0], node.output[0] = before, after
        nodes += [node, helper.make_node("Cast", [after], [result], to=TensorProto.FLOAT)]
    for tensor in graph.initializer:
        if tensor.name in scales:
            _round(tensor)
    for value in graph.value_info:
        if value.name in scales:
            value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    copied = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copied)


def _round(tensor: onnx.TensorProto) -> None:
    from ml_dtypes import bfloat16

    rounded = numpy_helper.to_array(tensor).astype(np.float32).astype(bfloat16)
    tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
