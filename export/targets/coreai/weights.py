"""Quantised weights in a Core AI program: an operator stands for each, and its lowering writes the integers.

The operator has no tensor arguments, so neither torch.export nor the converter holds a weight. The integers
are two to a byte for 4 bits, and are named by the path of their linear, as indices into palettes are.
"""

import re
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from torch import nn

from voxport.bundle.errors import ExportError
from voxport.export.targets.apple import Array, Linear, integers_and_scales
from voxport.export.targets.coreai.tools import dialect, ir
from voxport.quantize.modules import CHUNK, PalettizedLinear

PRODUCT, TRANSPOSE = "coreai.decomposable.broadcasting_batch_matmul", "coreai.transpose"
CONSTANT = "coreai.constant"
# Their operands: integers, scales, zero points and minima; or indices, palettes and the axis.
DECODERS = ("coreai.blockwise_shift_scale", "coreai.lut_to_dense")
BLOB = re.compile(r'dense_resource<"?(.*?)"?> : ')
DTYPES = {"si8": np.int8, "f16": np.float16, "f32": np.float32}
# Any in this module: values, types and locations of the IR, whose stubs name private classes.


@torch.library.custom_op("voxport::stored_weight", mutates_args=())
def stored_weight(path: str, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    """The weight [rows, columns] of the linear at `path` of a graph's module. It is never computed."""
    raise NotImplementedError("voxport::stored_weight stands for a weight in a traced program")


@stored_weight.register_fake
def _shape_of_stored_weight(path: str, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(rows, columns, dtype=dtype)


def stored_weights_of(module: nn.Module) -> Callable[[Linear], torch.Tensor]:
    paths = {part: path for path, part in module.named_modules()}
    return lambda part: stored_weight(paths[part], part.out_features, part.in_features, torch.float32)


class StoredWeights:
    """The lowering of `stored_weight` for all functions of a graph. They share one copy of a weight."""

    def __init__(self, module: nn.Module):
        self._linears = {path: part for path, part in module.named_modules() if isinstance(part, Linear)}
        self._constants: dict[str, Any] = {}

    def __call__(self, values: Any, node: torch.fx.Node, location: Any) -> Any:
        path, rows, columns, dtype = node.args
        linear = self._linears[str(path)]
        bits, is_palette = linear.scheme.bits, isinstance(linear, PalettizedLinear)
        integer_type = ir.IntegerType.get_unsigned(bits) if is_palette else ir.IntegerType.get_signed(bits)
        is_half = dtype == torch.float16
        float_type = ir.F16Type.get() if is_half else ir.F32Type.get()
        scales = linear.palette[:, None, :, None] if isinstance(linear, PalettizedLinear) else linear.scale
        weight = (
            self._constant(f"{path}.integers", lambda: _packed_rows(linear), [rows, columns], integer_type),
            self._constant(
                f"{path}.scales.{float_type}",
                lambda: scales.numpy().astype(np.float16 if is_half else np.float32),
                list(scales.shape),
                float_type,
            ),
        )
        if is_palette:
            axis = dialect.constant(np.array(0, np.int16), loc=location)
            return dialect.lut_to_dense(*weight, axis, loc=location)
        zeros = (_zeros(list(scales.shape), element) for element in (integer_type, float_type))
        return dialect.blockwise_shift_scale(*weight, *zeros, loc=location)

    def _constant(self, name: str, make: Callable[[], Any], shape: list[Any], element: Any) -> Any:
        if name not in self._constants:
            type_ = ir.RankedTensorType.get(shape, element)
            self._constants[name] = ir.DenseResourceElementsAttr.get_from_buffer(
                np.ascontiguousarray(make()).data, name, type_
            )
        return constant_op(self._constants[name])


def _packed_rows(linear: Linear) -> np.ndarray:
    """Packed a few rows at a time: large arrays that are freed at once leave gaps as large as the asset."""
    if isinstance(linear, PalettizedLinear) or not linear.is_packed:
        return packed(integers_and_scales(linear)[0].numpy(), linear.scheme.bits)
    result = np.empty(linear.weight.numel(), np.uint8)
    rows = 2 * max(1, CHUNK // linear.in_features // 2)  # even, so that they end with a byte
    for start in range(0, linear.out_features, rows):
        part = packed(linear.integers(slice(start, start + rows)).numpy(), linear.scheme.bits)
        place = start * linear.in_features // 2
        result[place : place + len(part)] = part
    return result


def _zeros(shape: list[Any], element: Any) -> Any:
    make = ir.IntegerAttr if isinstance(element, ir.IntegerType) else ir.FloatAttr
    value = ir.DenseElementsAttr.get_splat(ir.RankedTensorType.get(shape, element), make.get(element, 0))
    return constant_op(value)


def constant_op(value: Any) -> Any:
    return dialect.ConstantOp(value=value).result  # type: ignore[no-untyped-call]


def packed(integers: np.ndarray, bits: int) -> np.ndarray:
    """The bytes of integers in row order. Of two 4-bit integers in a byte, the first is the low half."""
    if bits == 8:
        return integers
    if bits != 4:
        raise ExportError(f"Core AI stores weights of 4 or 8 bits, got {bits}; choose another recipe")
    flat = integers.reshape(-1).view(np.uint8)
    result = flat[0::2] & 15
    result[: len(flat) // 2] |= flat[1::2] << 4
    return result


def unpacked(data: np.ndarray, is_signed: bool) -> np.ndarray:
    """The 4-bit integers that `packed` made bytes of, one in a byte, and a zero if their number is odd."""
    both = np.stack((data & 15, data >> 4), -1).reshape(-1)
    return (both << 4).view(np.int8) >> 4 if is_signed else both


def source_of(value: Any, *between: str) -> tuple[str, Any]:
    """The operation that makes a value, with its name, before those named. No name: an argument."""
    while (kind := getattr(value.owner, "name", "")) in between:
        value = value.owner.operands[0]
    return kind, value.owner


def text_of(value: Any) -> str:
    """The values of a small constant, or the name of its blob. Empty if they are computed."""
    kind, source = source_of(value)
    return str(source.attributes["value"]) if kind == CONSTANT else ""


def values_of(constant: Any, blobs: dict[str, Array]) -> Array:
    value = constant.owner.attributes["value"]
    type_ = ir.RankedTensorType(value.type)
    element = str(type_.element_type)
    if not (found := BLOB.match(str(value))):
        return np.array(value, DTYPES[element])  # other types end the process
    data = blobs[found[1]]
    values = unpacked(data, element == "si4") if element.endswith("i4") else data.view(DTYPES[element])
    return values[: prod(type_.shape)].reshape(type_.shape)


def weight_of(blobs: dict[str, Array], integers: Any, scales: Any, *_: Any) -> tuple[Array, Array]:
    """Integers [N, K] and scales [N, blocks], or indices and palettes, from the operands of a decoder."""
    factors = values_of(scales, blobs)
    return values_of(integers, blobs), factors[:, 0, :, 0] if factors.ndim == 4 else factors
