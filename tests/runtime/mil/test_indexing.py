"""Slices, gathers and scatters, against NumPy and PyTorch."""

import coremltools as ct
import numpy as np
import pytest
import torch
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Function
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from reference import normal, op, same

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops import OPERATIONS as OPS

bounds = st.integers(-5, 6)


@given(data=st.data())
def test_slices_are_numpys(data):
    x, places = normal(4, 5, 3), []
    begin, end, stride = [], [], []
    begin_mask, end_mask, squeeze_mask = ([data.draw(st.integers(0, 1)) for _ in range(3)] for _ in range(3))
    for axis, size in enumerate(x.shape):
        begin.append(data.draw(st.integers(-size, size - 1)))
        end.append(data.draw(bounds))
        stride.append(data.draw(st.sampled_from([1, 2, -1])))
        whole = slice(
            None if begin_mask[axis] else begin[axis], None if end_mask[axis] else end[axis], stride[axis]
        )
        places.append((0 if begin_mask[axis] else begin[axis]) if squeeze_mask[axis] else whole)
    expected = x[tuple(places)]
    if expected.size:  # coremltools refuses an empty slice, and infers the others by itself
        masks = {"begin_mask": begin_mask, "end_mask": end_mask, "squeeze_mask": squeeze_mask}
        with Function({}, opset_version=ct.target.iOS18):
            inferred = mb.slice_by_index(
                x=x,
                begin=begin,
                end=end,
                stride=stride,
                **{key: [bool(bit) for bit in mask] for key, mask in masks.items()},
            ).val
        np.testing.assert_array_equal(inferred, expected)
    same(op("slice_by_index")(x, begin, end, stride, begin_mask, end_mask, squeeze_mask), expected)
    updated = x.copy()
    updated[tuple(places)] = 9
    same(
        op("slice_update")(
            x, np.full(expected.shape, 9, np.float32), begin, end, stride, begin_mask, end_mask, squeeze_mask
        ),
        updated,
    )


@given(data=st.data())
def test_gathers(data):
    x = normal(3, 4, 5)
    exact = torch.from_numpy(x)
    axis = data.draw(st.sampled_from([0, 1, 2, -1]))
    size = x.shape[axis]
    ids = data.draw(hnp.arrays(np.int32, (2, 3), elements=st.integers(0, size - 1)))
    lead = list(exact.shape[: axis % 3])
    expected = exact.index_select(axis, torch.from_numpy(ids).flatten().long()).reshape(
        *lead, 2, 3, *exact.shape[axis % 3 + 1 :]
    )
    same(op("gather")(x, ids, axis), expected)
    table = x.astype(np.int8)
    same(op("gather")(table, ids, axis), table.take(ids, axis))
    along = data.draw(hnp.arrays(np.int32, x.shape, elements=st.integers(0, size - 1)))
    same(op("gather_along_axis")(x, along, axis), exact.gather(axis, torch.from_numpy(along).long()))
    batched = data.draw(hnp.arrays(np.int32, (3, 2), elements=st.integers(0, 3)))
    same(
        OPS["gather"](x, batched, 1, 1),
        torch.stack([row[torch.from_numpy(ids).long()] for row, ids in zip(exact, batched, strict=True)]),
    )
    pairs = np.stack((batched % 3, batched), -1)
    same(
        op("gather_nd")(x, pairs),
        exact[torch.from_numpy(pairs[..., 0]).long(), torch.from_numpy(pairs[..., 1]).long()],
    )
    same(
        OPS["gather_nd"](x, batched[..., None], 1),
        torch.stack([row[torch.from_numpy(ids).long()] for row, ids in zip(exact, batched, strict=True)]),
    )


@pytest.mark.parametrize("index", [-1, 3])
@pytest.mark.parametrize("name", ["gather", "gather_along_axis", "gather_nd", "scatter"])
def test_an_index_out_of_bounds_is_told(name, index):
    x, ids = normal(3, 2), np.array([[index, 0]], np.int32)
    with pytest.raises(MilError, match="into an axis of 3"):
        OPS[name](x, *([ids[0], normal(2, 2)] if name == "scatter" else [ids]))


MODES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@pytest.mark.parametrize("mode", [*MODES, "update", "sub", "div"])
def test_scatters(mode):
    data, ids = (
        normal(4, 3),
        np.array([2, 0, 2], np.int32) if mode in MODES else np.array([2, 0, 3], np.int32),
    )
    updates = normal(3, 3, seed=1)
    expected = data.copy()
    for row, place in enumerate(ids):
        old, new = expected[place].copy(), updates[row]
        results = {
            "add": old + new,
            "mul": old * new,
            "max": np.maximum(old, new),
            "min": np.minimum(old, new),
            "update": new,
            "sub": old - new,
            "div": old / new,
        }
        expected[place] = results[mode]
    same(op("scatter")(data, ids, updates, 0, mode), expected)
    same(op("scatter_nd")(data, ids[:, None], updates, mode), expected)
    along = np.repeat(ids[:, None], 3, 1)
    same(op("scatter_along_axis")(data, along, updates, 0, mode), expected)
    if mode in MODES:
        same(
            OPS["scatter_along_axis"](data, along, updates, 0, mode),
            torch.from_numpy(data).scatter_reduce(
                0, torch.from_numpy(along).long(), torch.from_numpy(updates), MODES[mode]
            ),
        )
    with pytest.raises(UnsupportedError, match="scatter mode"):
        OPS["scatter"](data, ids, updates, 0, "xor")


def test_places_of_what_is_not_zero():
    x = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    same(op("non_zero")(x), torch.from_numpy(x).nonzero().int())
