"""Compressed weights equal their definitions, written out in NumPy."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.runtime.mil_reference import normal, op, same

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops import OPERATIONS as OPS


@given(data=hnp.arrays(np.int8, (4, 6)), offset=hnp.arrays(np.int8, (4, 3)), signed=st.booleans())
def test_blockwise_weights_equal_their_definition(data: np.ndarray, offset: np.ndarray, signed: bool) -> None:
    scale = np.abs(normal(4, 3)) + 0.1
    exact = data.astype(np.float64) - (np.repeat(offset, 2, 1).astype(np.float64) if signed else 0)
    same(
        op("constexpr_blockwise_shift_scale")(data, scale, offset if signed else None),
        (exact * np.repeat(scale, 2, 1)).astype(np.float32),
    )
    mask = (data > 0).astype(np.uint8)
    found = op("constexpr_sparse_blockwise_shift_scale")(mask, data[data > 0], scale)
    same(found[1], (data * np.repeat(scale, 2, 1)).astype(np.float32)[data > 0])
    with pytest.raises(MilError, match="blocks of shape"):
        OPS["constexpr_blockwise_shift_scale"](data, normal(3, 3))


@given(data=hnp.arrays(np.uint8, (3, 4)), axis=st.sampled_from([0, 1, -1]))
def test_affine_weights_equal_their_definition(data: np.ndarray, axis: int) -> None:
    size = data.shape[axis]
    scale, zero = np.abs(normal(size)) + 0.1, np.arange(size, dtype=np.uint8)
    shaped = [-1, 1] if axis == 0 else [1, -1]
    expected = (data.astype(np.float32) - zero.reshape(shaped)) * scale.reshape(shaped)
    same(op("constexpr_affine_dequantize")(data, zero, scale, axis), expected)
    same(op("dequantize")(data, scale, zero, axis), expected)
    same(OPS["dequantize"](data, np.float32(0.5)), data * np.float32(0.5))
    with pytest.raises(MilError, match="no axis"):
        OPS["dequantize"](data, scale)


@pytest.mark.parametrize(("dtype", "kind"), [("int8", torch.qint8), ("uint8", torch.quint8)])
def test_quantize_equals_torch(dtype: str, kind: torch.dtype) -> None:
    x, scale, zero = 3 * normal(3, 40), np.array([0.1, 0.02, 0.5], np.float32), np.array([3, 0, 7])
    expected = torch.quantize_per_channel(
        torch.from_numpy(x), torch.from_numpy(scale), torch.from_numpy(zero), 0, kind
    ).int_repr()
    same(op("quantize")(x, scale, dtype, zero.astype(dtype), 0), expected.int().numpy().astype(dtype))
    with pytest.raises(UnsupportedError, match="quantize to"):
        OPS["quantize"](x, scale, "int4")


@given(data=st.data(), blocks=st.sampled_from([(1, 1), (2, 1), (2, 3), (4, 6)]))
def test_palettes_equal_their_definition(data: st.DataObject, blocks: tuple[int, int]) -> None:
    indices = data.draw(hnp.arrays(np.uint8, (4, 6), elements=st.integers(0, 3)))
    lut = normal(*blocks, 4, 1)
    expected = np.empty((4, 6), np.float32)
    for row, column in np.ndindex(4, 6):
        expected[row, column] = lut[row * blocks[0] // 4, column * blocks[1] // 6, indices[row, column], 0]
    same(op("constexpr_lut_to_dense")(indices, lut), expected)
    vectors = normal(*blocks, 4, 2, seed=1)
    wide = np.empty((8, 6), np.float32)
    for row, column in np.ndindex(4, 6):
        wide[2 * row : 2 * row + 2, column] = vectors[
            row * blocks[0] // 4, column * blocks[1] // 6, indices[row, column]
        ]
    same(OPS["constexpr_lut_to_dense"](indices, vectors, 0), wide)
    mask = (indices > 1).astype(np.uint8)
    same(op("constexpr_lut_to_sparse")(mask, indices[indices > 1], lut)[1], expected[indices > 1])
    with pytest.raises(MilError, match="no vector_axis"):
        OPS["constexpr_lut_to_dense"](indices, vectors)


@pytest.mark.parametrize(("index", "entries"), [(4, 4), (-1, 4), (0, 0)])
def test_an_index_outside_its_table_is_an_error(index: int, entries: int) -> None:
    """Also where all tables together have such an entry."""
    indices = np.zeros((2, 3), np.int8)
    indices[0, 1] = index
    with pytest.raises(MilError, match=f"into tables of {entries} entries"):
        OPS["constexpr_lut_to_dense"](indices, normal(2, 1, entries, 1))


def test_packed_indices_and_masks_are_unpacked() -> None:
    lut, indices = normal(4), np.array([[0, 1, 2], [3, 3, 1]], np.uint8)
    packed = np.array([0 | 1 << 2 | 2 << 4 | 3 << 6, 3 | 1 << 2], np.uint8)
    same(OPS["constexpr_lut_to_dense"](packed, lut, shape=[2, 3]), lut[indices])
    same(
        op("constexpr_sparse_to_dense")(np.array([5, 6], np.float32), np.array([[0, 1], [1, 0]], np.uint8)),
        np.array([[0, 5], [6, 0]], np.float32),
    )
    same(
        OPS["constexpr_sparse_to_dense"](np.array([5, 6], np.float32), np.array([0b0110], np.uint8), [2, 2]),
        np.array([[0, 5], [6, 0]], np.float32),
    )
    same(
        op("constexpr_cast")(normal(3).astype(np.float16), "fp32"),
        normal(3).astype(np.float16).astype(np.float32),
    )
    with pytest.raises(MilError, match="values for a mask"):
        OPS["constexpr_sparse_to_dense"](normal(3), np.array([[0, 1]], np.uint8))
    with pytest.raises(MilError, match="power of two"):
        OPS["constexpr_lut_to_dense"](packed, normal(3), shape=[2, 3])
