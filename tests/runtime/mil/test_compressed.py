"""Compressed weights equal their definitions, written out in NumPy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.runtime.mil_reference import normal, op, same

from voxport.runtime.mil.errors import MilError, UnsupportedError
from voxport.runtime.mil.ops import OPERATIONS as OPS


@given(data=hnp.arrays(np.int8, (4, 6)))
def test_blockwise_weights_equal_their_definition(data: np.ndarray) -> None:
    scale = np.abs(normal(4, 3)) + 0.1
    expected = (data.astype(np.float64) * np.repeat(scale, 2, 1)).astype(np.float32)
    same(op("constexpr_blockwise_shift_scale")(data, scale), expected)
    with pytest.raises(MilError, match="blocks of shape"):
        OPS["constexpr_blockwise_shift_scale"](data, normal(3, 3))


@given(data=st.data(), blocks=st.sampled_from([(1, 1), (2, 1), (2, 3), (4, 6)]))
def test_palettes_equal_their_definition(data: st.DataObject, blocks: tuple[int, int]) -> None:
    indices = data.draw(hnp.arrays(np.uint8, (4, 6), elements=st.integers(0, 3)))
    lut = normal(*blocks, 4, 1)
    expected = np.empty((4, 6), np.float32)
    for row, column in np.ndindex(4, 6):
        expected[row, column] = lut[row * blocks[0] // 4, column * blocks[1] // 6, indices[row, column], 0]
    same(op("constexpr_lut_to_dense")(indices, lut), expected)
    with pytest.raises(UnsupportedError, match="a table of vectors of 2 values"):
        OPS["constexpr_lut_to_dense"](indices, normal(*blocks, 4, 2))


@pytest.mark.parametrize(("index", "entries"), [(4, 4), (-1, 4), (0, 0)])
def test_an_index_outside_its_table_is_an_error(index: int, entries: int) -> None:
    """Also where all tables together have such an entry."""
    indices = np.zeros((2, 3), np.int8)
    indices[0, 1] = index
    with pytest.raises(MilError, match=f"into tables of {entries} entries"):
        OPS["constexpr_lut_to_dense"](indices, normal(2, 1, entries, 1))
