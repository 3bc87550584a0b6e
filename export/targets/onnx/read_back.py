"""Reads a saved graph back: its quantised linears have the arithmetic, integers and scales of the module."""

from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import onnx

from voxport.bundle.errors import ExportError
from voxport.bundle.manifest import Precision
from voxport.export.targets.base import Graph
from voxport.export.targets.onnx.float16 import FLOAT_ACTIVATIONS
from voxport.export.targets.onnx.kernels import INTEGER_ACTIVATIONS, block_scale
from voxport.export.targets.onnx.lowering import pack
from voxport.export.targets.read_back import StoredLinear, compare_linears, hash_of
from voxport.quantize.modules import QuantizedLinear


def check_graph(path: Path, graph: Graph, precision: Precision) -> str:
    """Compares every quantised linear of the file with the linears of `graph`. Raises ExportError.

    Returns a description, empty where nothing is quantised.
    """
    return compare_linears(
        path.name, graph, partial(_of_linear, precision=precision), _of_file(path, precision)
    )


def _of_linear(linear: QuantizedLinear, precision: Precision) -> StoredLinear:
    bits, integers = linear.scheme.bits, linear.integers().numpy()
    if linear.scheme.group is None and precision == "float32":
        return StoredLinear(8, linear.block, hash_of(pack(integers, 8, None)), hash_of(linear.scale.numpy()))
    scale, block = block_scale(linear)
    return StoredLinear(bits, block, hash_of(pack(integers, bits, block)), hash_of(scale.numpy()))


def _of_file(path: Path, precision: Precision) -> dict[StoredLinear, str]:
    """The linears of a file, and the node of each.

    Raises ExportError if activations are rounded in a float16 bundle, or not rounded in a float32 bundle.
    """
    model = onnx.load(path, load_external_data=False)
    constants = {constant.name: constant for constant in model.graph.initializer}

    def read(name: str) -> np.ndarray:
        constant = constants[name]
        place = {entry.key: entry.value for entry in constant.external_data}
        if not place:
            return onnx.numpy_helper.to_array(constant)
        # `to_array` refuses files with several hard links, as `cp -l` makes them
        dtype = onnx.helper.tensor_dtype_to_np_dtype(constant.data_type)
        # of the file that export writes: the engine refuses other places
        file, offset = path.with_name(f"{path.name}.data"), int(place.get("offset", 0))
        return np.fromfile(file, dtype, prod(constant.dims), offset=offset).reshape(constant.dims)

    expected = FLOAT_ACTIVATIONS if precision == "float16" else INTEGER_ACTIVATIONS
    found = {}
    for node in model.graph.node:
        if node.op_type == "MatMulIntegerToFloat":
            weight, scale = read(node.input[1]), read(node.input[3])
            linear = StoredLinear(8, len(weight), hash_of(weight), hash_of(scale))
            found[linear] = f"node {node.name}"
        if node.op_type == "MatMulNBits":
            attributes = {attribute.name: attribute.i for attribute in node.attribute}
            weight, scale = map(read, node.input[1:3])
            if attributes["accuracy_level"] != expected:
                raise ExportError(
                    f"{path.name}: node {node.name} has accuracy_level {attributes['accuracy_level']}, "
                    f"expected {expected} ({INTEGER_ACTIVATIONS}: integer activations)"
                )
            bits, block = attributes["bits"], attributes["block_size"]
            linear = StoredLinear(bits, block, hash_of(weight), hash_of(scale.astype(np.float32)))
            found[linear] = f"node {node.name}"
    return found
