"""Slices and gathers equal those of NumPy, coremltools and PyTorch."""

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

from voxport.runtime.mil.errors import MilError, UnsupportedError
from voxport.runtime.mil.ops import OPERATIONS as OPS

SIZE = 4
BOUNDS = range(-SIZE - 2, SIZE + 3)  # from below -SIZE to above SIZE
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


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("stride", STRIDES)
def test_slices_equal_coremltools_for_all_bounds(stride: int, masked: bool) -> None:
    """The executor computes the value that coremltools infers, for the bounds that coremltools stores.

    The op set defines slices as NumPy's, and value inference slices with NumPy. Before that, shape inference
    adds the size to a negative bound, clamps the sum to 0, and overwrites the constant. For negative strides,
    an end below -size therefore becomes 0 and the first value is lost: `x[2:-9:-1]` is stored as `x[2:0:-1]`.
    This happens at conversion, so the executor must not repeat it. The bounds are read after inference.
    """
    x = normal(SIZE)
    for begin, end in product(BOUNDS, BOUNDS):
        if not x[begin : None if masked else end : stride].size:
            continue  # coremltools rejects most empty slices
        with Function({}, opset_version=ct.target.iOS18):
            bounds = {"begin": [begin], "end": [end], "stride": [stride]}
            inferred = mb.slice_by_index(x=x, **bounds, end_mask=[masked])
        stored = [inferred.op.inputs[name].val.tolist() for name in bounds]
        found = OPS["slice_by_index"](x, *stored, [int(masked)])
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
    with pytest.raises(UnsupportedError, match="gather with batch_dims 1"):
        OPS["gather"](x, ids, 1, 1)


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_out_of_bounds_raises(index: int) -> None:
    with pytest.raises(MilError, match="into an axis of size 3"):
        OPS["gather"](normal(3, 2), np.array([[index, 0]], np.int32))
