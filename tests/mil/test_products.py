"""Products, attention, convolutions and pooling, against PyTorch."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from reference import normal, op, same

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops import OPERATIONS as OPS


def test_products():
    x, w, b = normal(2, 3, 8), normal(5, 8), normal(5)
    same(op("linear")(x, w, b), F.linear(*map(torch.from_numpy, (x, w, b))), 1e-5)
    same(OPS["linear"](x, w), F.linear(*map(torch.from_numpy, (x, w))), 1e-5)
    a, c = normal(2, 1, 4, 8), normal(3, 8, 5)
    same(op("matmul")(a, c), torch.from_numpy(a) @ torch.from_numpy(c), 1e-5)
    same(OPS["matmul"](a.swapaxes(-1, -2), c.swapaxes(-1, -2), True, True), torch.from_numpy(a) @ torch.from_numpy(c), 1e-5)
    left, right = normal(2, 3, 4), normal(2, 4, 5)
    same(op("einsum")([left, right], "bij,bjk->bik"), torch.einsum("bij,bjk->bik", torch.from_numpy(left), torch.from_numpy(right)), 1e-5)


@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_attention(mask):
    q, k, v = normal(2, 4, 3, 8), normal(2, 4, 6, 8, seed=1), normal(2, 4, 6, 5, seed=2)
    masks = {None: None, "bool": np.arange(6) <= np.arange(3)[:, None] + 1, "float": normal(3, 6, seed=3)}
    given_mask = masks[mask]
    expected = F.scaled_dot_product_attention(*map(torch.from_numpy, (q, k, v)), attn_mask=None if given_mask is None else torch.from_numpy(given_mask))
    same(op("scaled_dot_product_attention")(q, k, v, given_mask), expected, 1e-5)


CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


@given(
    axes=st.sampled_from([1, 2, 3]),
    groups=st.sampled_from([1, 2]),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    width=st.integers(1, 3),
    pad=st.integers(0, 2),
)
def test_convolutions(axes, groups, stride, dilation, width, pad):
    x, bias = normal(2, 4, *[6, 7, 5][:axes]), normal(6, seed=2)
    weight = normal(6, 4 // groups, *[width] * axes, seed=1)
    expected = CONV[axes](*map(torch.from_numpy, (x, weight, bias)), stride=stride, padding=pad, dilation=dilation, groups=groups)
    found = op("conv")(x, weight, bias, [stride] * axes, "custom", [pad] * 2 * axes, [dilation] * axes, groups)
    same(found, expected, 2e-5)
    weight = normal(4, 6 // groups, *[width] * axes, seed=1)
    pad = min(pad, (width - 1) * dilation // 2)
    expected = TRANSPOSED[axes](*map(torch.from_numpy, (x, weight, bias)), stride=stride, padding=pad, dilation=dilation, groups=groups)
    found = op("conv_transpose")(x, weight, bias, [pad] * 2 * axes, None, "custom", [stride] * axes, [dilation] * axes, groups)
    same(found, expected, 2e-5)


@pytest.mark.parametrize("kind", ["valid", "same", "same_lower"])
@pytest.mark.parametrize(("width", "stride"), [(3, 1), (4, 1), (4, 2), (1, 2)])
def test_named_paddings(kind, width, stride):
    x, weight = normal(1, 2, 7), normal(3, 2, width, seed=1)
    total = max(0, (math.ceil(7 / stride) - 1) * stride + width - 7)
    before = {"valid": 0, "same": total // 2, "same_lower": total - total // 2}[kind]
    after = 0 if kind == "valid" else total - before
    expected = F.conv1d(F.pad(torch.from_numpy(x), (before, after)), torch.from_numpy(weight), stride=stride)
    same(OPS["conv"](x, weight, None, [stride], kind), expected, 1e-5)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("conv", {"pad_type": "circular"}),
        ("conv", {"groups": 3}),
        ("conv", {"pad_type": "custom", "pad": [1]}),
        ("conv_transpose", {"pad_type": "circular"}),
    ],
)
def test_convolutions_that_are_not_defined(name, arguments):
    with pytest.raises(MilError):
        OPS[name](normal(1, 2, 7), normal(3, 2, 3) if name == "conv" else normal(2, 3, 3), **arguments)


@given(axes=st.sampled_from([1, 2]), width=st.integers(2, 3), stride=st.integers(1, 3), pad=st.integers(0, 1), ceil=st.booleans(), counted=st.booleans())
def test_pooling(axes, width, stride, pad, ceil, counted):
    x = normal(2, 3, *[7, 5][:axes])
    exact, arguments = torch.from_numpy(x), ([width] * axes, "custom", [stride] * axes, [pad] * 2 * axes)
    torch_max, torch_avg = (F.max_pool1d, F.avg_pool1d) if axes == 1 else (F.max_pool2d, F.avg_pool2d)
    same(op("max_pool")(x, *arguments, ceil), torch_max(exact, width, stride, pad, ceil_mode=ceil))
    expected = torch_avg(exact, width, stride, pad, ceil_mode=ceil, count_include_pad=counted)
    if ceil and counted:
        with pytest.raises(UnsupportedError, match="ceil_mode"):
            OPS["avg_pool"](x, *arguments, not counted, ceil)
    else:
        same(op("avg_pool")(x, *arguments, not counted, ceil), expected, 1e-5)


@pytest.mark.parametrize("extra", [0, 1, 2])
def test_transposed_convolutions_of_a_given_size(extra):
    x, weight = normal(1, 2, 5), normal(2, 3, 4, seed=1)
    expected = F.conv_transpose1d(torch.from_numpy(x), torch.from_numpy(weight), stride=3, padding=1, output_padding=extra)
    same(OPS["conv_transpose"](x, weight, None, [1, 1], list(expected.shape), "custom", [3]), expected, 1e-5)
    whole = F.conv_transpose1d(torch.from_numpy(x), torch.from_numpy(weight), stride=3)  # 16 long
    same(OPS["conv_transpose"](x, weight, None, None, None, "same", [3]), whole[..., 0:15], 1e-5)
    same(OPS["conv_transpose"](x, weight, None, None, [1, 3, 15], "same", [3]), whole[..., 0:15], 1e-5)


def test_without_padding_the_last_window_stays():
    """As the op set has it; PyTorch drops a window that begins outside."""
    assert OPS["max_pool"](normal(1, 1, 3), [1], "custom", [4], [0, 0], True).shape == (1, 1, 2)
