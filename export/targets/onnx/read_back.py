"""Reads a saved graph back: its quantised products have the arithmetic, integers and scales of the module."""

from pathlib import Path

import numpy as np
import onnx

from bundle.errors import ExportError
from export.targets.base import Graph
from export.targets.onnx.half import FLOAT_ACTIVATIONS
from export.targets.onnx.kernels import INTEGER_ACTIVATIONS
from export.targets.onnx.lowering import pack
from export.targets.read_back import Product, compare_products, hash_of
from quantize.modules import CHANNEL_BLOCK, QuantizedLinear


def check_graph(path: Path, graph: Graph) -> str:
    """Compares every `MatMulNBits` of the file with the linears of `graph`. Raises ExportError.

    Returns a description, empty where nothing is quantised.
    """
    return compare_products(path.name, graph, _of_linear, _of_file(path))


def _of_linear(linear: QuantizedLinear) -> Product:
    block = linear.block if linear.scheme.group else CHANNEL_BLOCK
    scale = linear.scale if linear.scheme.group else linear.scale.repeat(1, -(-linear.in_features // block))
    bits = linear.scheme.bits
    integers = pack(linear.integers().numpy(), bits, block)
    return Product(bits, block, hash_of(integers), hash_of(scale.numpy()))


def _of_file(path: Path) -> dict[Product, str]:
    """The products of a file, and the node of each.

    Raises ExportError if activations are rounded in a float16 graph, or not rounded in a float32 graph.
    """
    model = onnx.load(path, load_external_data=False)
    constants = {constant.name: constant for constant in model.graph.initializer}

    def read(name: str) -> np.ndarray:
        return onnx.numpy_helper.to_array(constants[name], str(path.parent))

    found = {}
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            attributes = {attribute.name: attribute.i for attribute in node.attribute}
            weight, scale = map(read, node.input[1:3])
            expected = FLOAT_ACTIVATIONS if scale.dtype == np.float16 else INTEGER_ACTIVATIONS
            if attributes["accuracy_level"] != expected:
                raise ExportError(
                    f"{path.name}: node {node.name} has accuracy_level {attributes['accuracy_level']}, "
                    f"expected {expected} ({INTEGER_ACTIVATIONS}: integer activations)"
                )
            bits, block = attributes["bits"], attributes["block_size"]
            product = Product(bits, block, hash_of(weight), hash_of(scale.astype(np.float32)))
            found[product] = f"node {node.name}"
    return found
