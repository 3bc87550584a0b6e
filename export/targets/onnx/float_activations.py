"""An engine that runs an ONNX bundle with float activations: the same graphs and weights without rounding.

With integer activations a float sum in another order moves some values by a whole step. Without that rounding
the artifact is as near to eager as float32 allows, so a much smaller fault shows.
"""

from pathlib import Path

import onnx

from runtime.engines.onnx import OnnxEngine

ACCURACY_LEVEL, FLOAT32 = "accuracy_level", 1  # of MatMulNBits: the type of its activations


class FloatActivationsEngine(OnnxEngine):
    """`OnnxEngine` whose quantised products take float32 activations."""

    def read_graph(self, path: Path) -> bytes:
        model = onnx.load(path, load_external_data=False)
        for node in model.graph.node:
            if node.op_type == "MatMulNBits":
                (level,) = (one for one in node.attribute if one.name == ACCURACY_LEVEL)
                level.i = FLOAT32
        content: bytes = model.SerializeToString()
        return content
