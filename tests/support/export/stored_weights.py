"""Quantised weights in artifacts: integers int8 [N, K] and scales [N, blocks] of every linear and table."""

from pathlib import Path

import numpy as np
import onnx

from voxport.export.targets.coreml.read_back import stored_weights


def onnx_weights(path: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    model = onnx.load(path)
    tensors = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    found = []
    for node in model.graph.node:
        if node.op_type == "MatMulNBits":
            attributes = {attribute.name: attribute.i for attribute in node.attribute}
            integers = _unpacked(tensors[node.input[1]], attributes["bits"])[:, : attributes["K"]]
            found.append((integers, tensors[node.input[2]]))
        if node.op_type == "MatMulIntegerToFloat":
            integers = tensors[node.input[1]].T.astype(np.int16) - tensors[node.input[5]]
            found.append((integers.astype(np.int8), tensors[node.input[3]][:, None]))
    tables = [value for value in tensors.values() if value.dtype == np.int8 and value.ndim == 2]
    return found + [
        (table, scale)
        for table in tables
        for scale in tensors.values()
        if scale.dtype == np.float32 and scale.shape == (len(table), 1)
    ]


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The packing of MatMulNBits: uint8 [N, blocks, bytes] -> int8 [N, K rounded up to whole blocks]."""
    if bits == 4:
        packed = np.stack((packed & 15, packed >> 4), axis=-1)
    return (packed.astype(np.int16) - (1 << (bits - 1))).astype(np.int8).reshape(len(packed), -1)


def coreml_weights(path: Path, function: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """The weights of a function of a package, in the order of use."""
    return [weight() for weight in stored_weights(path, function)]
