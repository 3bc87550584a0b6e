"""Weights that are held compressed (`constexpr_*`), and quantised activations. Definitions of iOS 16 and iOS 18."""

from __future__ import annotations

from math import prod

import numpy as np

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops.arguments import Array, Arrays, Ints, Operation
from runtime.mil.types import BY_NAME
from runtime.mil.weights import unpack_bits


def _spread(values: Array, shape: tuple[int, ...]) -> Array:
    """Repeats what stands for a block over the block, axis by axis."""
    if values.ndim != len(shape) or any(
        size % max(count, 1) or not count for size, count in zip(shape, values.shape, strict=True)
    ):
        raise MilError(f"blocks of shape {list(values.shape)} over {list(shape)}")
    for axis, size in enumerate(shape):
        if values.shape[axis] not in (1, size):  # 1 broadcasts
            values = np.repeat(values, size // values.shape[axis], axis)
    return values


def constexpr_blockwise_shift_scale(data: Array, scale: Array, offset: Array | None = None) -> Array:
    """scale · (data - offset), one of each per block."""
    blocks = _blocks(scale, data.shape)
    result = data.astype(np.float32).reshape([size for pair in blocks for size in pair])
    if offset is not None:
        _blocks(offset, data.shape)
        result -= offset.astype(np.float32).reshape([size for count in offset.shape for size in (count, 1)])
    result *= scale.astype(np.float32).reshape([size for count in scale.shape for size in (count, 1)])
    return result.reshape(data.shape)


def _blocks(values: Array, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Number and size of the blocks along every axis, of each of which `values` has one. Raises MilError where they do not divide it."""
    if values.ndim != len(shape) or any(
        not count or size % count for size, count in zip(shape, values.shape, strict=True)
    ):
        raise MilError(f"blocks of shape {list(values.shape)} over {list(shape)}")
    return [(count, size // count) for size, count in zip(shape, values.shape, strict=True)]


def constexpr_affine_dequantize(quantized_data: Array, zero_point: Array, scale: Array, axis: int) -> Array:
    """scale · (data - zero point), scalars or one per place of `axis`."""
    return dequantize(quantized_data, scale, zero_point, axis)


def _per_axis(values: Array, data: Array, axis: int | None) -> Array:
    if values.ndim == 0:
        return values.astype(np.float32)
    if axis is None:
        raise MilError("values per place without an axis")
    return values.astype(np.float32).reshape([-1 if at == axis % data.ndim else 1 for at in range(data.ndim)])


def constexpr_lut_to_dense(
    indices: Array, lut: Array, vector_axis: int | None = None, shape: Ints | None = None
) -> Array:
    """iOS 18: `lut` [..., palettes, vector] has two axes more than `indices`, and its first ones tell blocks.

    iOS 16, with `shape`: indices packed into bytes, the lowest bits first, and one flat table.
    """
    if shape is not None:
        return _packed_lut(indices, lut, shape)
    if lut.ndim != indices.ndim + 2:
        raise MilError(f"a table of {list(lut.shape)} for indices of {list(indices.shape)}")
    table = _spread(lut.reshape(*lut.shape[:-2], -1), (*indices.shape, lut.shape[-2] * lut.shape[-1]))
    table = np.broadcast_to(table, (*indices.shape, table.shape[-1])).reshape(*indices.shape, *lut.shape[-2:])
    found = np.take_along_axis(table, indices.astype(np.int64)[..., None, None], axis=-2)[
        ..., 0, :
    ]  # [..., vector]
    if lut.shape[-1] == 1:
        return found[..., 0]
    if vector_axis is None:
        raise MilError("vectors without vector_axis")
    at = vector_axis % indices.ndim
    return np.moveaxis(found, -1, at + 1).reshape(*indices.shape[:at], -1, *indices.shape[at + 1 :])


def _packed_lut(indices: Array, lut: Array, shape: Ints) -> Array:
    width = int(np.log2(lut.size))
    if lut.size != 1 << width:
        raise MilError(f"a table of {lut.size} values, expected a power of two")
    count = prod(shape)
    if 8 * indices.size < count * width:
        raise MilError(f"{indices.size} bytes of indices for shape {shape}")
    return lut.reshape(-1)[unpack_bits(indices.tobytes(), count, width)].reshape(shape)


def constexpr_sparse_to_dense(nonzero_data: Array, mask: Array, shape: Ints | None = None) -> Array:
    """Values in order at the places where the mask is 1, zero elsewhere. iOS 16, with `shape`: the mask's bits lie in bytes."""
    if shape is not None:
        if 8 * mask.size < prod(shape):
            raise MilError(f"{mask.size} bytes of mask for shape {shape}")
        mask = unpack_bits(mask.tobytes(), prod(shape), 1).reshape(shape)
    places = mask.astype(bool)
    if int(places.sum()) != nonzero_data.size:
        raise MilError(f"{nonzero_data.size} values for a mask of {int(places.sum())}")
    dense = np.zeros(mask.shape, nonzero_data.dtype)
    dense[places] = nonzero_data.reshape(-1)
    return dense


def constexpr_lut_to_sparse(
    indices_mask: Array, indices_nonzero_data: Array, lut: Array, vector_axis: int | None = None
) -> Arrays:
    """Mask and values where only the indices at the mask's ones are held. Scalars alone."""
    if lut.shape[-1] != 1:
        raise UnsupportedError("constexpr_lut_to_sparse of vectors")
    dense = constexpr_lut_to_dense(constexpr_sparse_to_dense(indices_nonzero_data, indices_mask), lut)
    return [indices_mask, dense[indices_mask.astype(bool)]]


def constexpr_sparse_blockwise_shift_scale(
    data_mask: Array, nonzero_data: Array, scale: Array, offset: Array | None = None
) -> Arrays:
    """Mask and dequantised values where only those at the mask's ones are held."""
    dense = constexpr_blockwise_shift_scale(constexpr_sparse_to_dense(nonzero_data, data_mask), scale, offset)
    return [data_mask, dense[data_mask.astype(bool)]]


def constexpr_cast(source_val: Array, output_dtype: str) -> Array:
    if output_dtype != "fp32":
        raise UnsupportedError(f"constexpr_cast to {output_dtype!r}")
    return source_val.astype(np.float32)


def quantize(
    input: Array, scale: Array, output_dtype: str, zero_point: Array | None = None, axis: int | None = None
) -> Array:
    """round(x / scale) + zero point, kept within the type."""
    if output_dtype not in ("int8", "uint8"):
        raise UnsupportedError(f"quantize to {output_dtype!r}")
    kind = np.iinfo(BY_NAME[output_dtype].held)
    offset = np.float32(0) if zero_point is None else _per_axis(zero_point, input, axis)
    return np.clip(np.rint(input / _per_axis(scale, input, axis)) + offset, kind.min, kind.max).astype(
        kind.dtype
    )


def dequantize(input: Array, scale: Array, zero_point: Array | None = None, axis: int | None = None) -> Array:
    """scale · (x - zero point)."""
    shifted = input.astype(np.float32) - (
        np.float32(0) if zero_point is None else _per_axis(zero_point, input, axis)
    )
    return shifted * _per_axis(scale, input, axis)


OPERATIONS: dict[str, Operation] = {
    "constexpr_blockwise_shift_scale": constexpr_blockwise_shift_scale,
    "constexpr_affine_dequantize": constexpr_affine_dequantize,
    "constexpr_lut_to_dense": constexpr_lut_to_dense,
    "constexpr_sparse_to_dense": constexpr_sparse_to_dense,
    "constexpr_lut_to_sparse": constexpr_lut_to_sparse,
    "constexpr_sparse_blockwise_shift_scale": constexpr_sparse_blockwise_shift_scale,
    "constexpr_cast": constexpr_cast,
    "quantize": quantize,
    "dequantize": dequantize,
}
