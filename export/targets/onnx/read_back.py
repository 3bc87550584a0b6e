"""Reads a saved graph back: its quantised linears have the arithmetic, integers and scales of the module. An
engine runs it with float activations.
"""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import fill

import numpy as np
import onnx
from onnx import helper

from voxport.bundle.errors import ExportError
from voxport.bundle.manifest import Precision
from voxport.export.targets.base import Graph
from voxport.export.targets.onnx.kernels import (
    FLOAT_ACTIVATIONS,
    INTEGER_ACTIVATIONS,
    accuracy_level,
    block_scale,
)
from voxport.export.targets.onnx.lowering import OPSET, pack
from voxport.export.targets.shared import StoredLinear, compare_linears, hash_of
from voxport.quantize.modules import QuantizedLinear
from voxport.runtime.engines.onnx import OnnxEngine, ort

LEAST_VERSION = "1.24"  # 1.23 has no kernel of QuantizeLinear in opset 23
WIDTH = 110  # characters of a line


def check_graph(path: Path, graph: Graph, precision: Precision) -> str:
    """Compares every quantised linear of the file with the linears of `graph`. Raises ExportError.

    Returns a description, empty if nothing is quantised.
    """
    of_linear = partial(_of_linear, precision=precision)
    linears = [part for part in graph.module.modules() if isinstance(part, QuantizedLinear)]
    levels = {
        of_linear(part): accuracy_level(part) if precision == "float32" else FLOAT_ACTIVATIONS
        for part in linears
    }
    return compare_linears(path.name, graph, of_linear, _of_file(path, levels))


def describe_operators(paths: Sequence[Path]) -> str:
    """What an engine needs for the graphs, for people."""
    found: dict[str, set[str]] = {}
    for path in paths:
        model = onnx.load(path, load_external_data=False)
        for node in _nodes(model.graph):
            found.setdefault(node.domain or "ai.onnx", set()).add(node.op_type)
    names = "; ".join(f"{domain}: {', '.join(sorted(found[domain]))}" for domain in sorted(found))
    engine = f"The graphs have opset {OPSET} and are for ONNX Runtime from {LEAST_VERSION} on."
    return fill(f"{engine} Their operators: {names}.", WIDTH) + "\n"


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """With those of subgraphs."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g)


def _of_linear(linear: QuantizedLinear, precision: Precision) -> StoredLinear:
    bits, integers = linear.scheme.bits, linear.integers().numpy()
    is_product = linear.scheme.integer_activations(True) and linear.scheme.group is None
    if is_product and precision == "float32":
        return StoredLinear(8, linear.block, hash_of(pack(integers, 8, None)), hash_of(linear.scale.numpy()))
    scale, block = block_scale(linear)
    return StoredLinear(bits, block, hash_of(pack(integers, bits, block)), hash_of(scale.numpy()))


def _of_file(path: Path, levels: Mapping[StoredLinear, int]) -> dict[StoredLinear, str]:
    """The linears of a file, and the node of each.

    Raises ExportError if a node rounds its activations and `levels` do not say so, or the other way round.
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
        # the file that export writes: the engine refuses other places
        file, offset = path.with_name(f"{path.name}.data"), int(place.get("offset", 0))
        return np.fromfile(file, dtype, prod(constant.dims), offset=offset).reshape(constant.dims)

    found = {}
    for node in model.graph.node:
        if node.op_type == "MatMulIntegerToFloat":
            weight, scale = read(node.input[1]), read(node.input[3])
            linear = StoredLinear(8, len(weight), hash_of(weight), hash_of(scale))
            found[linear] = f"node {node.name}"
        if node.op_type == "MatMulNBits":
            attributes = {attribute.name: attribute.i for attribute in node.attribute}
            weight, scale = map(read, node.input[1:3])
            bits, block, level = (attributes[key] for key in ("bits", "block_size", "accuracy_level"))
            linear = StoredLinear(bits, block, hash_of(weight), hash_of(scale.astype(np.float32)))
            if level != (expected := levels.get(linear, level)):
                raise ExportError(
                    f"{path.name}: node {node.name} has accuracy_level {level}, expected {expected} "
                    f"({INTEGER_ACTIVATIONS}: integer activations)"
                )
            found[linear] = f"node {node.name}"
    return found


class FloatActivationsEngine(OnnxEngine):
    """Runs a bundle with the same graphs and weights, whose quantised linears do not round their activations.

    With integer activations a float sum in another order moves some values by a whole step. Without that
    rounding the artifact is as near to eager as float32 allows, so a much smaller fault shows.
    """

    @staticmethod
    def read_graph(path: Path) -> bytes:
        model = onnx.load(path, load_external_data=False)
        unrounded: dict[str, str] = {}
        nodes: list[onnx.NodeProto] = []
        for node in model.graph.node:
            if node.op_type == "QuantizeLinear":
                unrounded[node.output[0]] = node.input[0]
            elif node.op_type == "MatMulIntegerToFloat":
                nodes += _float_linear(node, unrounded[node.input[0]])
            else:
                nodes.append(node)
            if node.op_type == "MatMulNBits":
                (level,) = (one for one in node.attribute if one.name == "accuracy_level")
                level.i = FLOAT_ACTIVATIONS
        del model.graph.node[:]
        model.graph.node.extend(nodes)
        content: bytes = model.SerializeToString()
        return content

    @cached_property
    def _weights_folder(self) -> Path:
        """The folder of the bundle. ONNX Runtime refuses links out of it, so the weights of a bundle in the
        cache of a model hub are linked, or copied, into a temporary folder.
        """
        folder = self.bundle.folder.resolve()
        linked = [path for path in folder.glob("*.data") if path.is_symlink()]
        if not linked:
            return folder
        self._temporary = TemporaryDirectory(prefix="voxport-")  # removed with the engine
        for path in linked:
            copy = Path(self._temporary.name, path.name)
            try:
                os.link(os.path.realpath(path), copy)
            except OSError:  # another file system
                shutil.copyfile(path, copy)
        return Path(self._temporary.name)

    def session_options(self, threads: int) -> ort.SessionOptions:
        options = super().session_options(threads)
        # the graph is not read from its file
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(self._weights_folder))
        # ONNX Runtime may turn a product with a dequantised weight into MatMulNBits, by default of level 4
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(FLOAT_ACTIVATIONS))
        return options


def _float_linear(node: onnx.NodeProto, x: str) -> list[onnx.NodeProto]:
    """A `MatMulIntegerToFloat`, whose first scale is 1, with `x` in place of its rounded input."""
    _, weight, one, scale, _, zero = node.input
    (y,) = node.output
    return [
        helper.make_node("DequantizeLinear", [weight, one, zero], [f"{y}.weight"]),
        helper.make_node("MatMul", [x, f"{y}.weight"], [f"{y}.product"]),
        helper.make_node("Mul", [f"{y}.product", scale], [y]),
    ]
