"""An engine that runs an ONNX bundle with float activations: the same graphs and weights without rounding.

With integer activations a float sum in another order moves some values by a whole step. Without that rounding
the artifact is as near to eager as float32 allows, so a much smaller fault shows.
"""

import os
import shutil
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
from onnx import helper

from voxport.runtime.engines.onnx import OnnxEngine
from voxport.runtime.engines.ort import ort

ACCURACY_LEVEL, FLOAT32 = "accuracy_level", 1  # of MatMulNBits: the type of its activations


class FloatActivationsEngine(OnnxEngine):
    """`OnnxEngine` whose quantised linears take float32 activations."""

    def read_graph(self, path: Path) -> bytes:
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
                (level,) = (one for one in node.attribute if one.name == ACCURACY_LEVEL)
                level.i = FLOAT32
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

    def _session_options(self) -> ort.SessionOptions:
        options = super()._session_options()
        # the graph is not read from its file
        key = "session.model_external_initializers_file_folder_path"
        options.add_session_config_entry(key, str(self._weights_folder))
        # ONNX Runtime may turn a product with a dequantised weight into MatMulNBits, by default of level 4
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", str(FLOAT32))
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
