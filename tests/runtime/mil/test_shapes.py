"""Operations that rearrange, repeat or create values equal PyTorch's."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.runtime.mil_reference import normal, op, same

from voxport.runtime.mil.errors import MilError
from voxport.runtime.mil.ops import OPERATIONS as OPS


def test_rearranging_operations_equal_torch() -> None:
    x = normal(2, 3, 4)
    exact = torch.from_numpy(x)
    same(op("reshape")(x, [0, 0, -1]), exact)
    same(OPS["reshape"](x, [6, -1]), exact.reshape(6, -1))
    same(op("transpose")(x, [2, 0, 1]), exact.permute(2, 0, 1))
    same(op("expand_dims")(x, [0, -1]), exact[None, ..., None])
    same(op("squeeze")(x[None, ..., None], [0, -1]), exact)
    same(op("concat")([x, x[:, :1]], 1), torch.cat((exact, exact[:, :1]), 1))
    same(op("stack")([x, -x], -1), torch.stack((exact, -exact), -1))
    for found, expected in zip(op("split")(x, 2, [1, 3]), exact.split([1, 3], 2), strict=True):
        same(found, expected)
    same(op("tile")(x, [2, 1, 3]), exact.repeat(2, 1, 3))
    same(op("reverse")(x, [0, -1]), exact.flip(0, -1))
    same(op("shape")(x), np.array([2, 3, 4], np.int32))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("split", {"axis": 2, "split_sizes": [1, 1]}, "split sizes"),
        ("tile", {"reps": [2]}, "reps"),
        ("pad", {"pad": [1]}, "for 3 axes"),
        ("pad", {"pad": [9, 9], "mode": "reflect"}, "reflection by"),
        ("pad", {"pad": [1, 1], "mode": "replicate"}, "pad mode"),
        ("concat", {"axis": 0, "interleave": True}, "concat with interleave"),
        ("slice_by_index", {"begin": [0], "end": [1]}, "3 axes"),
        ("slice_by_index", {"begin": [0, 0, 7], "end": [1, 1, 1], "squeeze_mask": [0, 0, 1]}, "index 7 into"),
    ],
)
def test_arguments_that_do_not_fit_the_shape_raise(
    name: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(MilError, match=message):
        op(name)(normal(2, 3, 4), **arguments)


def test_arrays_above_the_size_limit_raise() -> None:
    with pytest.raises(MilError, match="expected at most"):
        OPS["tile"](np.zeros((2**20, 1), np.float32), [1, 2**20])
    with pytest.raises(MilError, match="expected at most"):
        OPS["range_1d"](np.float32(1e20), np.float32(0), np.float32(1))
    with pytest.raises(MilError, match="step 0"):
        OPS["range_1d"](np.int32(3), np.int32(0), np.int32(0))


numbers_of_any_kind = st.sampled_from([np.float32, np.int32, np.int8, np.uint8, np.bool_])


@given(
    shape=hnp.array_shapes(min_dims=2, max_dims=4, min_side=1, max_side=4),
    kind=numbers_of_any_kind,
    data=st.data(),
)
def test_rearranging_operations_keep_the_type(
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
    for found, expected in zip(
        op("split")(x, axis, [cuts, x.shape[axis] - cuts]),
        exact.split([cuts, x.shape[axis] - cuts], axis),
        strict=True,
    ):
        same(found, expected)
    repeats = [data.draw(st.integers(1, 3)) for _ in shape]
    same(op("tile")(x, repeats), exact.repeat(*repeats))
    same(op("reshape")(x, [-1, x.shape[-1]]), exact.reshape(-1, x.shape[-1]))
    same(op("squeeze")(op("expand_dims")(x, [0, -1]), [0, -1]), exact)


@given(
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    mode=st.sampled_from(["constant", "reflect"]),
)
def test_pad_equals_torch(pads: list[int], mode: str) -> None:
    x = normal(1, 2, 4, 3)
    exact = F.pad(
        torch.from_numpy(x),
        (pads[2], pads[3], pads[0], pads[1]),
        mode,
        **({"value": 2.0} if mode == "constant" else {}),
    )
    same(op("pad")(x, pads, mode, np.float32(2)), exact)


@given(start=st.integers(-5, 5), end=st.integers(-5, 5), step=st.sampled_from([1, 2, 3, -1, -2]))
def test_range_equals_arange(start: int, end: int, step: int) -> None:
    same(
        op("range_1d")(np.int32(end), np.int32(start), np.int32(step)),
        np.array(list(range(start, end, step)), np.int32),
    )
    same(
        OPS["range_1d"](np.float32(end), np.float32(start), np.float32(step / 2)),
        np.arange(start, end, step / 2, dtype=np.float32),
    )


def test_filled_arrays_have_the_shape_of_their_reference() -> None:
    same(op("fill_like")(normal(2, 3), np.int32(7)), torch.full((2, 3), 7))


def test_zeros_in_a_shape_copy_sizes_aligned_at_the_last_axis() -> None:
    """The op set defines this. PyTorch's reshape has no such zeros."""
    assert OPS["reshape"](normal(2, 50), [1, 0, -1, 0]).shape == (1, 1, 2, 50)
