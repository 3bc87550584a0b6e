"""Weights of an ONNX artifact: quantised products, their packing, and the file of large constants."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
import torch

from export.targets.onnx.operators import matmul_nbits
from quantize.modules import CHANNEL_BLOCK, QuantizedLinear

INLINE_BELOW = 1024  # bytes; smaller constants stay in the graph
ALIGNMENT = 4096  # bytes; a page, so that a runtime may map each weight


def lower_linear(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
    """x [..., K] -> [..., N] as `MatMulNBits` with the weights of `linear`. A per-channel scale is repeated
    for each block.
    """
    block = linear.block if linear.scheme.group else CHANNEL_BLOCK
    blocks = -(-linear.in_features // block)
    scale = linear.scale if linear.scheme.group else linear.scale.repeat(1, blocks)
    y: torch.Tensor = matmul_nbits(x, linear.constant, scale, linear.scheme.bits, block)
    return y if linear.bias is None else y + linear.bias


def pack_weights(model: ir.Model) -> None:
    """Replaces the int8 [N, K] weight of each MatMulNBits by one in the operator's packing, computed when it
    is written.
    """
    packed: dict[tuple[str, int, int], ir.Value] = {}
    for node in model.graph:
        if node.op_type != "MatMulNBits":
            continue
        source: Any = node.inputs[1]  # a named constant; onnx_ir types every input and name as optional
        bits, block = (node.attributes[name].as_int() for name in ("bits", "block_size"))
        key = (source.name, bits, block)
        if key not in packed:
            packed[key] = _packed_value(source, bits, block)
            model.graph.register_initializer(packed[key])
        node.replace_input_with(1, packed[key])
    for name, _, _ in packed:
        if not (replaced := model.graph.initializers[name]).uses():
            del model.graph.initializers[name]
            replaced.const_value = None  # rewrite patterns of the exporter keep graphs and values alive


def _packed_value(source: Any, bits: int, block: int) -> ir.Value:
    rows, columns = source.const_value.shape
    shape, name = ir.Shape([rows, -(-columns // block), block * bits // 8]), f"{source.name}.packed"
    tensor = source.const_value
    lazy = ir.LazyTensor(
        lambda: ir.Tensor(pack(tensor.numpy(), bits, block), name=name, shape=shape),
        dtype=ir.DataType.UINT8,
        shape=shape,
        name=name,
    )
    return ir.Value(name=name, const_value=lazy, shape=shape, type=ir.TensorType(ir.DataType.UINT8))


def pack(integers: npt.NDArray[np.int8], bits: int, block: int) -> npt.NDArray[np.uint8]:
    """int8 [N, K] -> uint8 [N, ceil(K / block), block·bits / 8]: offset by the zero point; of two 4-bit
    values in a byte, the first is in the low half.
    """
    zero = 1 << (bits - 1)
    rows, columns = integers.shape
    padding = ((0, 0), (0, -columns % block))
    shifted = np.pad(integers.astype(np.int16) + zero, padding, constant_values=zero).astype(np.uint8)
    blocks = shifted.reshape(rows, -1, block)
    if bits == 8:
        return blocks
    return (blocks[..., 0::2] | (blocks[..., 1::2] << 4)).astype(np.uint8)


def move_large_constants(model: ir.Model, path: Path) -> None:
    """Writes large constants to the file `path`, equal bytes once, one tensor in memory at a time."""
    offsets: dict[bytes, int] = {}
    with path.open("wb") as file:
        for value in model.graph.initializers.values():
            tensor: Any = value.const_value  # an initializer has a value; onnx_ir types it as optional
            if tensor.nbytes < INLINE_BELOW:
                continue
            data = tensor.tobytes()
            key = hashlib.sha256(data).digest()
            if key not in offsets:
                file.write(b"\0" * (-file.tell() % ALIGNMENT))
                offsets[key] = file.tell()
                file.write(data)
            value.const_value = ir.ExternalTensor(
                path.name,
                offsets[key],
                len(data),
                tensor.dtype,
                shape=tensor.shape,
                name=str(value.name),
                base_dir=path.parent,
            )
