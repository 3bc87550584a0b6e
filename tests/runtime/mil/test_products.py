"""Matrix products, attention, convolutions and pooling equal PyTorch's."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.runtime.mil_reference import GROWN, floats, normal, op, same

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops import OPERATIONS as OPS

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
    flips=st.tuples(st.booleans(), st.booleans()),
)
def test_matmul_broadcasts_and_transposes(
    lead: hnp.BroadcastableShapes, data: st.DataObject, flips: tuple[bool, bool]
) -> None:
    m, k, n = (data.draw(sizes) for _ in range(3))
    x = data.draw(floats((*lead.input_shapes[0], *((k, m) if flips[0] else (m, k)))))
    y = data.draw(floats((*lead.input_shapes[1], *((n, k) if flips[1] else (k, n)))))
    left, right = (
        torch.from_numpy(array).mT if flip else torch.from_numpy(array)
        for array, flip in ((x, flips[0]), (y, flips[1]))
    )
    near(op("matmul")(x, y, *flips), left @ right)


@given(
    data=st.data(),
    equation=st.sampled_from(["bij,bjk->bik", "bhid,bhjd->bhij", "ij,jk->ik", "bcij,bcjk->bcik"]),
)
def test_einsum_equals_torch(data: st.DataObject, equation: str) -> None:
    axes = dict(zip("bchdijk", (data.draw(sizes) for _ in range(7)), strict=True))
    left, right = (
        data.draw(floats(tuple(axes[axis] for axis in term))) for term in equation.split("->")[0].split(",")
    )
    near(
        op("einsum")([left, right], equation),
        torch.einsum(equation, torch.from_numpy(left), torch.from_numpy(right)),
    )


def near(found: np.ndarray, expected: torch.Tensor) -> None:
    """The tolerance is for sums of at most 5 products of numbers up to 20: 5 * 400 * 2^-24 = 1.2e-4."""
    assert found.shape == tuple(expected.shape) and found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1.2e-4)


@given(
    batch=hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=3),
    data=st.data(),
    mask=st.sampled_from([None, "bool", "float"]),
)
def test_attention_equals_torch(batch: tuple[int, ...], data: st.DataObject, mask: str | None) -> None:
    queries, keys, width, values = (data.draw(sizes) for _ in range(4))
    q, k, v = (
        normal(*batch, queries, width),
        normal(*batch, keys, width, seed=1),
        normal(*batch, keys, values, seed=2),
    )
    masks = {
        None: None,
        "bool": np.arange(keys) <= np.arange(queries)[:, None],
        "float": normal(queries, keys, seed=3),
    }
    given_mask = masks[mask]
    expected = F.scaled_dot_product_attention(
        torch.from_numpy(q),
        torch.from_numpy(k),
        torch.from_numpy(v),
        attn_mask=None if given_mask is None else torch.from_numpy(given_mask),
    )
    same(op("scaled_dot_product_attention")(q, k, v, given_mask), expected, GROWN)


CONV: dict[int, Callable[..., torch.Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED: dict[int, Callable[..., torch.Tensor]] = {
    1: F.conv_transpose1d,
    2: F.conv_transpose2d,
    3: F.conv_transpose3d,
}


@given(
    axes=st.sampled_from([1, 2, 3]),
    groups=st.sampled_from([1, 2]),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    width=st.integers(1, 3),
    pad=st.integers(0, 2),
)
def test_convolutions_equal_torch(
    axes: int, groups: int, stride: int, dilation: int, width: int, pad: int
) -> None:
    x, bias = normal(2, 4, *[6, 7, 5][:axes]), normal(6, seed=2)
    weight = normal(6, 4 // groups, *[width] * axes, seed=1)
    expected = CONV[axes](
        *map(torch.from_numpy, (x, weight, bias)),
        stride=stride,
        padding=pad,
        dilation=dilation,
        groups=groups,
    )
    found = op("conv")(
        x, weight, bias, [stride] * axes, "custom", [pad] * 2 * axes, [dilation] * axes, groups
    )
    same(found, expected, GROWN)
    weight = normal(4, 6 // groups, *[width] * axes, seed=1)
    pad = min(pad, (width - 1) * dilation // 2)
    expected = TRANSPOSED[axes](
        *map(torch.from_numpy, (x, weight, bias)),
        stride=stride,
        padding=pad,
        dilation=dilation,
        groups=groups,
    )
    found = op("conv_transpose")(
        x, weight, bias, [pad] * 2 * axes, None, "custom", [stride] * axes, [dilation] * axes, groups
    )
    same(found, expected, GROWN)


@pytest.mark.parametrize("kind", ["valid", "same", "same_lower"])
@pytest.mark.parametrize(("width", "stride"), [(3, 1), (4, 1), (4, 2), (1, 2)])
def test_padding_types_equal_explicit_padding(kind: str, width: int, stride: int) -> None:
    x, weight = normal(1, 2, 7), normal(3, 2, width, seed=1)
    total = max(0, (math.ceil(7 / stride) - 1) * stride + width - 7)
    before = {"valid": 0, "same": total // 2, "same_lower": total - total // 2}[kind]
    after = 0 if kind == "valid" else total - before
    expected = F.conv1d(F.pad(torch.from_numpy(x), (before, after)), torch.from_numpy(weight), stride=stride)
    same(OPS["conv"](x, weight, None, [stride], kind), expected, GROWN)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("conv", {"pad_type": "circular"}),
        ("conv", {"groups": 3}),
        ("conv", {"pad_type": "custom", "pad": [1]}),
        ("conv_transpose", {"pad_type": "circular"}),
    ],
)
def test_convolutions_with_invalid_arguments_raise(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(MilError):
        OPS[name](normal(1, 2, 7), normal(3, 2, 3) if name == "conv" else normal(2, 3, 3), **arguments)


@given(
    axes=st.sampled_from([1, 2]),
    width=st.integers(2, 3),
    stride=st.integers(1, 3),
    pad=st.integers(0, 1),
    ceil=st.booleans(),
    counted=st.booleans(),
)
def test_pooling_equals_torch(
    axes: int, width: int, stride: int, pad: int, ceil: bool, counted: bool
) -> None:
    x = normal(2, 3, *[7, 5][:axes])
    exact, arguments = torch.from_numpy(x), ([width] * axes, "custom", [stride] * axes, [pad] * 2 * axes)
    torch_max, torch_avg = (F.max_pool1d, F.avg_pool1d) if axes == 1 else (F.max_pool2d, F.avg_pool2d)
    same(op("max_pool")(x, *arguments, ceil), torch_max(exact, width, stride, pad, ceil_mode=ceil))
    expected = torch_avg(exact, width, stride, pad, ceil_mode=ceil, count_include_pad=counted)
    if ceil and counted:
        with pytest.raises(UnsupportedError, match="ceil_mode"):
            OPS["avg_pool"](x, *arguments, not counted, ceil)
    else:
        same(op("avg_pool")(x, *arguments, not counted, ceil), expected, GROWN)


@pytest.mark.parametrize("extra", [0, 1, 2])
def test_transposed_convolutions_have_the_requested_size(extra: int) -> None:
    x, weight = normal(1, 2, 5), normal(2, 3, 4, seed=1)
    expected = F.conv_transpose1d(
        torch.from_numpy(x), torch.from_numpy(weight), stride=3, padding=1, output_padding=extra
    )
    same(OPS["conv_transpose"](x, weight, None, [1, 1], list(expected.shape), "custom", [3]), expected, GROWN)
    whole = F.conv_transpose1d(torch.from_numpy(x), torch.from_numpy(weight), stride=3)  # 16 long
    same(OPS["conv_transpose"](x, weight, None, None, None, "same", [3]), whole[..., 0:15], GROWN)
    same(OPS["conv_transpose"](x, weight, None, None, [1, 3, 15], "same", [3]), whole[..., 0:15], GROWN)


def test_ceil_mode_without_padding_keeps_the_last_window() -> None:
    """The op set differs from PyTorch, which drops a window that starts outside the input."""
    assert OPS["max_pool"](normal(1, 1, 3), [1], "custom", [4], [0, 0], True).shape == (1, 1, 2)
