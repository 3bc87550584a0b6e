"""Slices, gathers and scatters equal those of NumPy, coremltools and PyTorch."""

from itertools import product

import coremltools as ct
import numpy as np
import pytest
import torch
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import Function
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.runtime.mil_reference import normal, op, same

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops import OPERATIONS as OPS

SIZE = 4
BOUNDS = range(-SIZE - 2, SIZE + 3)  # from below -SIZE to above SIZE
STRIDES = (1, 2, 3, -1, -2, -3)
bits = st.integers(0, 1)


@given(data=st.data())
def test_slices_equal_numpys(data: st.DataObject) -> None:
    x, index = normal(4, 5, 3), []
    begin, end, stride = [], [], []
    begin_mask, end_mask, squeeze_mask = ([data.draw(bits) for _ in x.shape] for _ in range(3))
    for axis, size in enumerate(x.shape):
        begin.append(data.draw(st.integers(-size, size - 1)))
        end.append(data.draw(st.integers(-size - 2, size + 2)))
        stride.append(data.draw(st.sampled_from(STRIDES)))
        start, stop = None if begin_mask[axis] else begin[axis], None if end_mask[axis] else end[axis]
        index.append((start or 0) if squeeze_mask[axis] else slice(start, stop, stride[axis]))
    bounds, expected = (begin, end, stride, begin_mask, end_mask, squeeze_mask), x[tuple(index)]
    same(op("slice_by_index")(x, *bounds), expected)
    updated = x.copy()
    updated[tuple(index)] = 9
    same(op("slice_update")(x, np.full(expected.shape, 9, np.float32), *bounds), updated)


@pytest.mark.parametrize("masks", list(product([False, True], repeat=2)))
@pytest.mark.parametrize("stride", STRIDES)
def test_slices_equal_coremltools_for_all_bounds(stride: int, masks: tuple[bool, ...]) -> None:
    """The executor computes the value that coremltools infers, for the bounds that coremltools stores.

    The op set defines slices as NumPy's, and value inference slices with NumPy. Before that, shape inference
    adds the size to a negative bound, clamps the sum to 0, and overwrites the constant. For negative strides,
    an end below -size therefore becomes 0 and the first value is lost: `x[2:-9:-1]` is stored as `x[2:0:-1]`.
    This happens at conversion, so the executor must not repeat it. The bounds are read after inference.
    """
    x = normal(SIZE)
    for begin, end in product(BOUNDS, BOUNDS):
        start, stop = (None if mask else bound for mask, bound in zip(masks, (begin, end), strict=True))
        if not x[start:stop:stride].size:
            continue  # coremltools rejects most empty slices
        with Function({}, opset_version=ct.target.iOS18):
            bounds = {"begin": [begin], "end": [end], "stride": [stride]}
            inferred = mb.slice_by_index(x=x, **bounds, begin_mask=masks[:1], end_mask=masks[1:])
        stored = [inferred.op.inputs[name].val.tolist() for name in bounds]
        found = OPS["slice_by_index"](x, *stored, *([int(mask)] for mask in masks))
        np.testing.assert_array_equal(found, inferred.val)
        assert found.shape == inferred.shape


@pytest.mark.parametrize(("end", "stored"), [(-SIZE, 0), (-SIZE - 1, 0), (-9, 0), (-1, SIZE - 1)])
def test_coremltools_stores_no_negative_end_for_an_axis_of_known_size(end: int, stored: int) -> None:
    """The test above compares stored bounds for this reason. A failure means that coremltools has changed."""
    with Function({}, opset_version=ct.target.iOS18):
        inferred = mb.slice_by_index(x=normal(SIZE), begin=[2], end=[end], stride=[-1])
    assert inferred.op.end.val.tolist() == [stored]


@given(data=st.data())
def test_gathers_equal_torch(data: st.DataObject) -> None:
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
def test_an_index_out_of_bounds_raises(name: str, index: int) -> None:
    x, ids = normal(3, 2), np.array([[index, 0]], np.int32)
    with pytest.raises(MilError, match="into an axis of size 3"):
        OPS[name](x, *([ids[0], normal(2, 2)] if name == "scatter" else [ids]))


MODES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@pytest.mark.parametrize("mode", [*MODES, "update", "sub", "div"])
def test_scatters_equal_their_definition(mode: str) -> None:
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


def test_non_zero_equals_torch() -> None:
    x = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    same(op("non_zero")(x), torch.from_numpy(x).nonzero().int())
