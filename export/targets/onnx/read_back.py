"""Reads a saved graph back: its quantised products have the arithmetic, integers and scales of the module."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from bundle.errors import ExportError
from export.targets.base import Graph
from export.targets.onnx.half import FLOAT_ACTIVATIONS
from export.targets.onnx.kernels import INTEGER_ACTIVATIONS
from export.targets.onnx.lowering import pack
from quantize.modules import CHANNEL_BLOCK, QuantizedLinear

Product = tuple[int, int, str, str]  # bits, block size, and the hashes of integers and scales


def check_graph(path: Path, graph: Graph) -> str:
    """Compares every `MatMulNBits` of the file with the linears of `graph`. Raises ExportError.

    Returns a description. Empty where nothing is quantised. Changes of a weight that are too small to show in
    an output are found here.
    """
    expected = {_of_linear(part): name for name, part in graph.module.named_modules() if _is_linear(part)}
    found = _of_file(path)
    for product in expected.keys() - found.keys():
        raise ExportError(f"{path.name}: no product has the integers and scales of {expected[product]}")
    for product in found.keys() - expected.keys():
        raise ExportError(f"{path.name}: node {found[product]} has the weights of no linear of the module")
    return f"integers and scales of {len(found)} products are equal" if found else ""


def _is_linear(part: object) -> bool:
    return isinstance(part, QuantizedLinear)


def _of_linear(linear: Any) -> Product:
    """Any: a module that `_is_linear`."""
    block = linear.block if linear.scheme.group else CHANNEL_BLOCK
    scale = linear.scale if linear.scheme.group else linear.scale.repeat(1, -(-linear.in_features // block))
    bits = linear.scheme.bits
    return bits, block, _hash(pack(linear.integers().numpy(), bits, block)), _hash(scale.numpy())


def _of_file(path: Path) -> dict[Product, str]:
    """The products of a file, and the name of a node of each.

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
            scale_hash = _hash(scale.astype(np.float32))
            product = (attributes["bits"], attributes["block_size"], _hash(weight), scale_hash)
            found[product] = node.name
    return found


def _hash(values: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
