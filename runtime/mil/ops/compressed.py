"""Compressed weights (`constexpr_*`) as iOS 16 and iOS 18 define them, and quantised activations."""

from math import prod

import numpy as np

from runtime.mil.errors import MilError, UnsupportedError, require
from runtime.mil.types import Array, Arrays, Ints, Operator
from runtime.mil.weights import unpack_bits


def _repeat_blocks(values: Array, shape: tuple[int, ...]) -> Array:
    """Repeats the value of each block over the block. Axes with one block are left to broadcasting."""
    _blocks(values, shape)
    for axis, size in enumerate(shape):
        if values.shape[axis] not in (1, size):
            values = np.repeat(values, size // values.shape[axis], axis)
    return values


def constexpr_blockwise_shift_scale(data: Array, scale: Array, offset: Array | None = None) -> Array:
    """scale * (data - offset), with one scale and one offset per block."""
    blocks = _blocks(scale, data.shape)
    result = data.astype(np.float32).reshape([size for pair in blocks for size in pair])
    if offset is not None:
        _blocks(offset, data.shape)
        result -= offset.astype(np.float32).reshape([size for count in offset.shape for size in (count, 1)])
    result *= scale.astype(np.float32).reshape([size for count in scale.shape for size in (count, 1)])
    return result.reshape(data.shape)


def _blocks(values: Array, shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Number and size of the blocks along each axis, if `values` has one value per block.

    Raises MilError if the number does not divide the size of the axis.
    """
    require(
        values.ndim == len(shape)
        and all(count and size % count == 0 for size, count in zip(shape, values.shape, strict=True)),
        f"blocks of shape {list(values.shape)} over {list(shape)}",
    )
    return [(count, size // count) for size, count in zip(shape, values.shape, strict=True)]


def constexpr_affine_dequantize(quantized_data: Array, zero_point: Array, scale: Array, axis: int) -> Array:
    """scale * (data - zero_point), both scalars or with one value per index of `axis`."""
    return dequantize(quantized_data, scale, zero_point, axis)


def _per_axis(values: Array | None, data: Array, axis: int | None) -> Array:
    """`values` as float32, reshaped to broadcast along `axis` of `data`; 0 for None."""
    if values is None or values.ndim == 0:
        return np.asarray(0 if values is None else values, np.float32)
    if axis is None:
        raise MilError("one value per index, but no axis")
    return values.astype(np.float32).reshape(
        [-1 if index == axis % data.ndim else 1 for index in range(data.ndim)]
    )


def constexpr_lut_to_dense(
    indices: Array, lut: Array, vector_axis: int | None = None, shape: Ints | None = None
) -> Array:
    """Looks up each index in the table of its block.

    iOS 18: `lut` is [...blocks, entries, vector], with two axes more than `indices`. iOS 16, with `shape`:
    the table is flat. The indices are packed into bytes, the lowest bits first.
    """
    if shape is not None:
        return _packed_lut(indices, lut, shape)
    require(
        lut.ndim == indices.ndim + 2,
        f"a table of shape {list(lut.shape)} for indices of shape {list(indices.shape)}",
    )
    if lut.shape[-1] == 1:
        return _values_of_blocks(indices, lut[..., 0])
    table = _repeat_blocks(lut.reshape(*lut.shape[:-2], -1), (*indices.shape, lut.shape[-2] * lut.shape[-1]))
    table = np.broadcast_to(table, (*indices.shape, table.shape[-1])).reshape(*indices.shape, *lut.shape[-2:])
    chosen = np.take_along_axis(table, indices.astype(np.int64)[..., None, None], axis=-2)
    vectors = chosen[..., 0, :]  # [..., vector]
    if vector_axis is None:
        raise MilError("a table of vectors, but no vector_axis")
    axis = vector_axis % indices.ndim
    return np.moveaxis(vectors, -1, axis + 1).reshape(*indices.shape[:axis], -1, *indices.shape[axis + 1 :])


def _values_of_blocks(indices: Array, tables: Array) -> Array:
    """`tables` [...blocks, entries]: looks up every index at its place in all tables one after the other."""
    *counts, entries = tables.shape
    low, high = int(indices.min(initial=0)), int(indices.max(initial=0))
    require(low >= 0 and high < entries, f"indices from {low} to {high} into tables of {entries} entries")
    blocks = _blocks(tables[..., 0], indices.shape)
    starts = np.arange(0, tables.size, entries).reshape([size for count in counts for size in (count, 1)])
    places = indices.reshape([size for pair in blocks for size in pair]) + starts
    values: Array = np.take(tables, places)
    return values.reshape(indices.shape)


def _packed_lut(indices: Array, lut: Array, shape: Ints) -> Array:
    width, count = int(np.log2(lut.size)), prod(shape)
    require(lut.size == 1 << width, f"a table of {lut.size} values, expected a power of two")
    require(8 * indices.size >= count * width, f"{indices.size} bytes of indices for shape {shape}")
    return lut.reshape(-1)[unpack_bits(indices.tobytes(), count, width)].reshape(shape)


def constexpr_sparse_to_dense(nonzero_data: Array, mask: Array, shape: Ints | None = None) -> Array:
    """The values in order where the mask is 1, zeros elsewhere.

    iOS 16, with `shape`: the mask is packed into bytes, the lowest bits first.
    """
    if shape is not None:
        require(8 * mask.size >= prod(shape), f"{mask.size} bytes of mask for shape {shape}")
        mask = unpack_bits(mask.tobytes(), prod(shape), 1).reshape(shape)
    selected = mask.astype(bool)
    count = int(selected.sum())
    require(count == nonzero_data.size, f"{nonzero_data.size} values for a mask that selects {count}")
    dense = np.zeros(mask.shape, nonzero_data.dtype)
    dense[selected] = nonzero_data.reshape(-1)
    return dense


def constexpr_lut_to_sparse(
    indices_mask: Array, indices_nonzero_data: Array, lut: Array, vector_axis: int | None = None
) -> Arrays:
    """The mask and the table entries where the mask is 1. Implemented for scalar tables only."""
    require(lut.shape[-1] == 1, "constexpr_lut_to_sparse with a table of vectors", UnsupportedError)
    indices = constexpr_sparse_to_dense(indices_nonzero_data, indices_mask)
    return [indices_mask, constexpr_lut_to_dense(indices, lut)[indices_mask.astype(bool)]]


def constexpr_sparse_blockwise_shift_scale(
    data_mask: Array, nonzero_data: Array, scale: Array, offset: Array | None = None
) -> Arrays:
    """The mask and the dequantised values where the mask is 1."""
    dense = constexpr_blockwise_shift_scale(constexpr_sparse_to_dense(nonzero_data, data_mask), scale, offset)
    return [data_mask, dense[data_mask.astype(bool)]]


def constexpr_cast(source_val: Array, output_dtype: str) -> Array:
    require(output_dtype == "fp32", f"constexpr_cast to {output_dtype!r}", UnsupportedError)
    return source_val.astype(np.float32)


def quantize(
    input: Array, scale: Array, output_dtype: str, zero_point: Array | None = None, axis: int | None = None
) -> Array:
    """round(input / scale) + zero_point, clipped to the range of the type."""
    require(output_dtype in ("int8", "uint8"), f"quantize to {output_dtype!r}", UnsupportedError)
    limits = np.iinfo(output_dtype)
    levels = np.rint(input / _per_axis(scale, input, axis)) + _per_axis(zero_point, input, axis)
    return np.asarray(np.clip(levels, limits.min, limits.max).astype(limits.dtype))


def dequantize(input: Array, scale: Array, zero_point: Array | None = None, axis: int | None = None) -> Array:
    """scale * (input - zero_point)."""
    centred = input.astype(np.float32) - _per_axis(zero_point, input, axis)
    return np.asarray(centred * _per_axis(scale, input, axis))


OPERATIONS: dict[str, Operator] = {
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
