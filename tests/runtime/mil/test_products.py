"""Matrix products, attention and convolutions equal PyTorch's."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.runtime.mil_reference import GROWN, floats, normal, op, same

from voxport.runtime.mil.errors import MilError, UnsupportedError
from voxport.runtime.mil.ops import OPERATIONS as OPS

sizes = st.integers(1, 5)


@given(lead=hnp.array_shapes(min_dims=0, max_dims=3, min_side=1, max_side=3), data=st.data())
def test_linear_equals_torch(lead: tuple[int, ...], data: st.DataObject) -> None:
    columns, rows = data.draw(sizes), data.draw(sizes)
    x, w, b = (
        data.draw(floats((*lead, columns))),
        data.draw(floats((rows, columns))),
        data.draw(floats((rows,))),
    )
    exact = [torch.from_numpy(array) for array in (x, w, b)]
    near(op("linear")(x, w, b), F.linear(*exact))
    near(op("linear")(x, w), F.linear(*exact[:2]))


@given(
    lead=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=2, max_side=3),
    data=st.data(),
    flip=st.booleans(),
)
def test_matmul_broadcasts_and_transposes(
    lead: hnp.BroadcastableShapes, data: st.DataObject, flip: bool
) -> None:
    m, k, n = (data.draw(sizes) for _ in range(3))
    x = data.draw(floats((*lead.input_shapes[0], m, k)))
    y = data.draw(floats((*lead.input_shapes[1], *((n, k) if flip else (k, n)))))
    right = torch.from_numpy(y)
    near(op("matmul")(x, y, False, flip), torch.from_numpy(x) @ (right.mT if flip else right))
    with pytest.raises(UnsupportedError, match="transpose_x"):
        OPS["matmul"](x, y, True)


def near(found: np.ndarray, expected: torch.Tensor) -> None:
    """The tolerance is for sums of at most 5 products of numbers up to 20: 5 * 400 * 2^-24 = 1.2e-4."""
    assert found.shape == tuple(expected.shape) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1.2e-4)


@given(
    batch=hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=3),
    data=st.data(),
    masked=st.booleans(),
)
def test_attention_equals_torch(batch: tuple[int, ...], data: st.DataObject, masked: bool) -> None:
    queries, keys, width, values = (data.draw(sizes) for _ in range(4))
    q, k, v = (
        normal(*batch, queries, width),
        normal(*batch, keys, width, seed=1),
        normal(*batch, keys, values, seed=2),
    )
    mask = np.arange(keys) <= np.arange(queries)[:, None] if masked else None
    expected = F.scaled_dot_product_attention(
        torch.from_numpy(q),
        torch.from_numpy(k),
        torch.from_numpy(v),
        attn_mask=None if mask is None else torch.from_numpy(mask),
    )
    same(op("scaled_dot_product_attention")(q, k, v, mask), expected, GROWN)
    with pytest.raises(UnsupportedError, match="attn_mask of float32"):
        OPS["scaled_dot_product_attention"](q, k, v, normal(queries, keys))


@given(
    groups=st.sampled_from([1, 2]),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    width=st.integers(1, 3),
    biased=st.booleans(),
)
def test_convolutions_equal_torch(groups: int, stride: int, dilation: int, width: int, biased: bool) -> None:
    x, weight, bias = normal(2, 4, 6), normal(6, 4 // groups, width, seed=1), normal(6, seed=2)
    expected = F.conv1d(
        torch.from_numpy(x),
        torch.from_numpy(weight),
        torch.from_numpy(bias) if biased else None,
        stride=stride,
        dilation=dilation,
        groups=groups,
    )
    found = op("conv")(x, weight, bias if biased else None, [stride], "valid", [0, 0], [dilation], groups)
    same(found, expected, GROWN)


@pytest.mark.parametrize(
    ("shape", "arguments", "message"),
    [
        ((1, 2, 7), {"pad_type": "same"}, "conv with pad_type 'same'"),
        ((1, 2, 7), {"groups": 3}, "2 channels in 3 groups"),
        ((1, 2, 7, 7), {}, "conv over 2 axes"),
    ],
)
def test_convolutions_with_invalid_arguments_raise(
    shape: tuple[int, ...], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(MilError, match=message):
        OPS["conv"](normal(*shape), normal(3, 2, *[3] * (len(shape) - 2)), **arguments)
