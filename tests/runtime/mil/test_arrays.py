"""Operations that rearrange, select or create values equal PyTorch's, NumPy's or their definition."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.runtime.mil_reference import normal, op, same

from voxport.runtime.mil.types import MilError, UnsupportedError


@given(
    shape=hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=4),
    kind=st.sampled_from([np.float32, np.int32, np.int8, np.uint8, np.bool_]),
    data=st.data(),
)
def test_rearranging_operations_equal_torch_and_keep_the_type(
    shape: tuple[int, ...], kind: type, data: st.DataObject
) -> None:
    x: np.ndarray = np.random.default_rng(0).integers(-9, 9, shape).astype(kind)
    exact, axis = torch.from_numpy(x), data.draw(st.integers(-len(shape), len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    same(op("transpose")(x, order), exact.permute(*order))
    same(op("concat")([x, x], axis), torch.cat((exact, exact), axis))
    same(op("stack")([x, x], axis), torch.stack((exact, exact), axis))
    same(op("reverse")(x, [axis]), exact.flip(axis))
    cuts = data.draw(st.integers(0, x.shape[axis]))
    parts = [cuts, x.shape[axis] - cuts]
    for found, expected in zip(op("split")(x, axis, parts), exact.split(parts, axis), strict=True):
        same(found, expected)
    repeats = [data.draw(st.integers(1, 3)) for _ in shape]
    same(op("tile")(x, repeats), exact.repeat(*repeats))
    same(op("reshape")(x, [-1, x.shape[-1]]), exact.reshape(-1, x.shape[-1]))
    same(op("expand_dims")(x, [0, -1]), exact[None, ..., None])
    same(op("squeeze")(x[None, ..., None], [0, -1]), exact)
    same(op("shape")(x), np.array(shape, np.int32))


def test_zeros_in_a_shape_copy_sizes_aligned_at_the_last_axis() -> None:
    """The op set defines this. PyTorch's reshape has no such zeros."""
    assert op("reshape")(normal(2, 50), [1, 0, -1, 0]).shape == (1, 1, 2, 50)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("split", {"axis": 2, "split_sizes": [1, 1]}, "split sizes"),
        ("tile", {"reps": [2]}, "reps"),
        ("tile", {"reps": [1, 1, 2**28]}, "expected at most"),
        ("pad", {"pad": [1]}, "for 3 axes"),
        ("pad", {"pad": [9, 9], "mode": "reflect"}, "reflection by"),
        ("pad", {"pad": [1, 1], "mode": "replicate"}, "pad mode"),
        ("slice_by_index", {"begin": [0], "end": [1]}, "3 axes"),
        ("slice_by_index", {"begin": [0, 0, 7], "end": [1, 1, 1], "squeeze_mask": [0, 0, 1]}, "index 7 into"),
        ("gather", {"indices": np.array([[-1, 0]], np.int32)}, "into an axis of size 2"),
        ("gather", {"indices": np.array([[2, 0]], np.int32)}, "into an axis of size 2"),
    ],
)
def test_arguments_that_do_not_fit_the_shape_raise(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(MilError, match=message):
        op(name)(normal(2, 3, 4), **arguments)


@given(
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    mode=st.sampled_from(["constant", "reflect"]),
)
def test_pad_equals_torch(pads: list[int], mode: str) -> None:
    x, value = normal(1, 2, 4, 3), {"value": 2.0} if mode == "constant" else {}
    expected = F.pad(torch.from_numpy(x), (pads[2], pads[3], pads[0], pads[1]), mode, **value)
    same(op("pad")(x, pads, mode, np.float32(2)), expected)


@given(start=st.integers(-5, 5), end=st.integers(-5, 5), step=st.sampled_from([1, 2, 3, -1, -2]))
def test_range_equals_arange(start: int, end: int, step: int) -> None:
    expected = np.array(list(range(start, end, step)), np.int32)
    same(op("range_1d")(np.int32(end), np.int32(start), np.int32(step)), expected)
    halves = np.arange(start, end, step / 2, dtype=np.float32)
    same(op("range_1d")(np.float32(end), np.float32(start), np.float32(step / 2)), halves)


@pytest.mark.parametrize(("end", "step", "message"), [(1e20, 1, "expected at most"), (3, 0, "step 0")])
def test_a_range_without_end_or_beyond_the_size_limit_raises(end: float, step: float, message: str) -> None:
    with pytest.raises(MilError, match=message):
        op("range_1d")(np.float32(end), np.float32(0), np.float32(step))


def test_filled_arrays_have_the_shape_of_their_reference() -> None:
    same(op("fill_like")(normal(2, 3), np.int32(7)), torch.full((2, 3), 7))


STRIDES = (1, 2, 3, -1, -2, -3)
bits = st.integers(0, 1)


@given(data=st.data())
def test_slices_equal_numpys(data: st.DataObject) -> None:
    x, index = normal(4, 5, 3), []
    begin, end, stride = [], [], []
    end_mask, squeeze_mask = ([data.draw(bits) for _ in x.shape] for _ in range(2))
    for axis, size in enumerate(x.shape):
        begin.append(data.draw(st.integers(-size, size - 1)))
        end.append(data.draw(st.integers(-size - 2, size + 2)))
        stride.append(data.draw(st.sampled_from(STRIDES)))
        stop = None if end_mask[axis] else end[axis]
        index.append(begin[axis] if squeeze_mask[axis] else slice(begin[axis], stop, stride[axis]))
    same(op("slice_by_index")(x, begin, end, stride, end_mask, squeeze_mask), x[tuple(index)])


@given(data=st.data())
def test_gathers_equal_torch(data: st.DataObject) -> None:
    x = normal(3, 4, 5)
    exact = torch.from_numpy(x)
    axis = data.draw(st.sampled_from([0, 1, 2, -1]))
    ids = data.draw(hnp.arrays(np.int32, (2, 3), elements=st.integers(0, x.shape[axis] - 1)))
    lead, rest = exact.shape[: axis % 3], exact.shape[axis % 3 + 1 :]
    flat = exact.index_select(axis, torch.from_numpy(ids).flatten().long())
    same(op("gather")(x, ids, axis), flat.reshape(*lead, 2, 3, *rest))
    table = x.astype(np.int8)
    same(op("gather")(table, ids, axis), table.take(ids, axis))


@given(data=hnp.arrays(np.int8, (4, 6)))
def test_blockwise_weights_equal_their_definition(data: np.ndarray) -> None:
    scale = np.abs(normal(4, 3)) + 0.1
    expected = (data.astype(np.float64) * np.repeat(scale, 2, 1)).astype(np.float32)
    same(op("constexpr_blockwise_shift_scale")(data, scale), expected)
    with pytest.raises(MilError, match="blocks of shape"):
        op("constexpr_blockwise_shift_scale")(data, normal(3, 3))


@given(data=st.data(), blocks=st.sampled_from([(1, 1), (2, 1), (2, 3), (4, 6)]))
def test_palettes_equal_their_definition(data: st.DataObject, blocks: tuple[int, int]) -> None:
    indices = data.draw(hnp.arrays(np.uint8, (4, 6), elements=st.integers(0, 3)))
    lut = normal(*blocks, 4, 1)
    expected = np.empty((4, 6), np.float32)
    for row, column in np.ndindex(4, 6):
        expected[row, column] = lut[row * blocks[0] // 4, column * blocks[1] // 6, indices[row, column], 0]
    same(op("constexpr_lut_to_dense")(indices, lut), expected)
    with pytest.raises(UnsupportedError, match="a table of vectors of 2 values"):
        op("constexpr_lut_to_dense")(indices, normal(*blocks, 4, 2))


@pytest.mark.parametrize(("index", "entries"), [(4, 4), (-1, 4), (0, 0)])
def test_an_index_outside_its_table_is_an_error(index: int, entries: int) -> None:
    """Also if all tables together have such an entry."""
    indices = np.zeros((2, 3), np.int8)
    indices[0, 1] = index
    with pytest.raises(MilError, match=f"into tables of {entries} entries"):
        op("constexpr_lut_to_dense")(indices, normal(2, 1, entries, 1))
