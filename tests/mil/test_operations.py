"""Every operation of the executor against PyTorch, over shapes, broadcasting, types and edge values."""

import inspect
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from runtime.mil.errors import MilError, UnsupportedError
from runtime.mil.ops import OPERATIONS as OPS
from runtime.mil.ops import SIGNATURES

CLOSE = 4e-6  # 2^-18: float32's 2^-24 after what two libraries round differently in a function or in a sum of some dozen terms
EDGES = [0.0, -0.0, 1.0, -1.0, 1e-7, -3e4, 65504.0, 6.1e-5, float("inf"), float("-inf"), float("nan")]
numbers = st.floats(-20, 20, width=32)
shapes = hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=5)
op = OPS.__getitem__


def floats(shape=shapes, elements=numbers):
    return hnp.arrays(np.float32, shape, elements=elements)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def same(found, expected, close=CLOSE, floor=1e-30):
    expected = expected.numpy() if isinstance(expected, torch.Tensor) else np.asarray(expected)
    found = np.asarray(found)
    assert found.shape == expected.shape and found.dtype.kind == expected.dtype.kind, f"{found.dtype}{found.shape}, expected {expected.dtype}{expected.shape}"
    if found.dtype.kind == "f":
        scale = np.abs(expected[np.isfinite(expected)]).max(initial=0)
        np.testing.assert_allclose(found, expected, rtol=close, atol=close * min(scale, 1) + floor)
    else:
        np.testing.assert_array_equal(found, expected)


UNARY = {
    "abs": torch.abs,
    "acos": torch.acos,
    "asin": torch.asin,
    "atan": torch.atan,
    "atanh": torch.atanh,
    "ceil": torch.ceil,
    "cos": torch.cos,
    "cosh": torch.cosh,
    "erf": torch.erf,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "floor": torch.floor,
    "identity": lambda x: x,
    "relu": torch.relu,
    "relu6": F.relu6,
    "round": torch.round,
    "sigmoid": torch.sigmoid,
    "sign": torch.sign,
    "silu": F.silu,
    "sin": torch.sin,
    "sinh": torch.sinh,
    "softplus": F.softplus,
    "softsign": F.softsign,
    "sqrt": torch.sqrt,
    "square": torch.square,
    "tan": torch.tan,
    "tanh": torch.tanh,
}
NOT_AT = {  # values where the two sides have no number in common: a sign of nothing, a product of 0 and infinity
    "sign": np.isnan,
    "silu": np.isinf,
    "softsign": np.isinf,
    "softplus": np.isneginf,
}


@pytest.mark.parametrize("name", UNARY)
@given(x=floats())
def test_of_one_value(name, x):
    with np.errstate(all="ignore"):
        same(op(name)(x), UNARY[name](torch.from_numpy(x)), close=1e-5 if name in ("tan", "sinh", "cosh", "exp", "exp2") else CLOSE)


@pytest.mark.parametrize("name", UNARY)
def test_of_one_value_at_the_edges(name):
    x = np.array(EDGES, np.float32)
    x = x[~NOT_AT[name](x)] if name in NOT_AT else x
    x = x[np.abs(x) < 1e4] if name in ("sin", "cos", "tan") else x  # beyond it each library reduces its argument in its own way
    with np.errstate(all="ignore"):
        same(op(name)(x), UNARY[name](torch.from_numpy(x)), close=1e-5)


BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "real_div": torch.div,
    "equal": torch.eq,
    "not_equal": torch.ne,
    "greater": torch.gt,
    "greater_equal": torch.ge,
    "less": torch.lt,
    "less_equal": torch.le,
}


@pytest.mark.parametrize("name", BINARY)
@given(shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=4, max_side=4), data=st.data())
def test_of_two_values_broadcasts(name, shapes, data):
    x, y = (data.draw(floats(shape, st.sampled_from([*EDGES, 2.5, -3.25]))) for shape in shapes.input_shapes)
    with np.errstate(all="ignore"):
        same(op(name)(x, y), BINARY[name](torch.from_numpy(x), torch.from_numpy(y)))


integers = st.integers(-9, 9)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("add", torch.add),
        ("mul", torch.mul),
        ("real_div", lambda x, y: torch.div(x, y, rounding_mode="trunc")),
        ("floor_div", lambda x, y: torch.div(x, y, rounding_mode="floor")),
        ("mod", torch.remainder),
        ("pow", lambda x, y: torch.pow(x, y.abs())),
    ],
)
@given(data=st.data(), shape=shapes)
def test_integers_stay_integers(name, expected, data, shape):
    x = data.draw(hnp.arrays(np.int32, shape, elements=integers))
    y = data.draw(hnp.arrays(np.int32, shape, elements=integers.filter(bool)))
    same(op(name)(x, np.abs(y) if name == "pow" else y), expected(torch.from_numpy(x), torch.from_numpy(y)))


@pytest.mark.parametrize("name", ["real_div", "floor_div", "mod"])
def test_integers_are_not_divided_by_zero(name):
    with pytest.raises(MilError, match="by zero"):
        op(name)(np.array([1], np.int32), np.array([0], np.int32))


@given(x=floats(), data=st.data())
def test_division_and_power_of_floats(x, data):
    y = data.draw(floats(x.shape, st.floats(0.25, 8, width=32)))
    same(op("floor_div")(x, y), torch.floor_divide(torch.from_numpy(x), torch.from_numpy(y)))
    same(op("mod")(x, y), torch.remainder(torch.from_numpy(x), torch.from_numpy(y)), close=1e-5)
    same(op("pow")(np.abs(x), y), torch.pow(torch.from_numpy(np.abs(x)), torch.from_numpy(y)), close=2e-5)


@pytest.mark.parametrize(("name", "expected"), [("logical_and", torch.logical_and), ("logical_or", torch.logical_or), ("logical_xor", torch.logical_xor)])
@given(x=hnp.arrays(np.bool_, (2, 3)), y=hnp.arrays(np.bool_, (3,)))
def test_logic(name, expected, x, y):
    same(op(name)(x, y), expected(torch.from_numpy(x), torch.from_numpy(y)))
    same(op("logical_not")(x), ~torch.from_numpy(x))


@given(x=floats(), epsilon=st.sampled_from([1e-12, 1e-4, 0.5]))
def test_epsilons_are_added_inside(x, epsilon):
    x, exact = np.abs(x), torch.from_numpy(np.abs(x))
    with np.errstate(all="ignore"):
        same(op("rsqrt")(x, epsilon), torch.rsqrt(exact + epsilon))
        same(op("inverse")(x, epsilon), 1 / (exact + epsilon))
        same(op("log")(x, epsilon), torch.log(exact + epsilon), close=1e-5)


@given(x=floats())
def test_activations(x):
    exact = torch.from_numpy(x)
    wide = exact.double()  # its own 1 + erf(x) is good to 1e-16 of x
    same(op("gelu")(x), F.gelu(wide).float(), floor=1e-14)
    same(op("gelu")(x, "TANH_APPROXIMATION"), F.gelu(wide, approximate="tanh").float(), floor=1e-14)
    same(op("gelu")(x, "SIGMOID_APPROXIMATION"), (wide * torch.sigmoid(1.702 * wide)).float(), floor=1e-14)
    same(op("elu")(x, 0.7), F.elu(exact, 0.7))
    same(op("leaky_relu")(x, 0.1), F.leaky_relu(exact, 0.1))
    same(op("sigmoid_hard")(x, 1 / 6, 0.5), F.hardsigmoid(exact))
    same(op("clip")(x, -1.5, 2.0), exact.clamp(-1.5, 2.0))
    with pytest.raises(UnsupportedError, match="gelu mode"):
        OPS["gelu"](x, "CUBIC")


def test_prelu_has_a_slope_per_channel():
    x, alpha = normal(2, 3, 4), normal(3)
    same(op("prelu")(x, alpha), F.prelu(torch.from_numpy(x), torch.from_numpy(alpha)))


@pytest.mark.parametrize(
    ("dtype", "expected"), [("int32", torch.int32), ("bool", torch.bool), ("fp32", torch.float32), ("int8", torch.int8), ("uint8", torch.uint8)]
)
def test_cast(dtype, expected):
    x = np.array([0.0, 0.9, 1.5, 2.5, 100.0], np.float32)
    same(op("cast")(x, dtype), torch.from_numpy(x).to(expected))
    same(op("cast")(-x[:3] if dtype != "uint8" else x, dtype), torch.from_numpy(-x[:3] if dtype != "uint8" else x).to(expected))
    with pytest.raises(UnsupportedError, match="cast to"):
        OPS["cast"](x, "complex")
    with pytest.raises(MilError, match="casts values"):
        OPS["cast"](np.array([np.nan], np.float32), "int32")


@given(cond=hnp.arrays(np.bool_, (3, 1)), a=floats((3, 4)), b=floats((4,)))
def test_select(cond, a, b):
    same(op("select")(cond, a, b), torch.where(torch.from_numpy(cond), torch.from_numpy(a), torch.from_numpy(b)))


REDUCTIONS = {
    "reduce_sum": torch.sum,
    "reduce_mean": torch.mean,
    "reduce_max": torch.amax,
    "reduce_min": torch.amin,
    "reduce_l1_norm": lambda x, dim, keepdim: x.abs().sum(dim, keepdim),
    "reduce_l2_norm": lambda x, dim, keepdim: torch.linalg.vector_norm(x, dim=dim, keepdim=keepdim),
    "reduce_sum_square": lambda x, dim, keepdim: x.square().sum(dim, keepdim),
    "reduce_log_sum_exp": torch.logsumexp,
}


@pytest.mark.parametrize("name", REDUCTIONS)
@given(x=floats((2, 3, 4)), axes=st.sampled_from([[0], [1, 2], [-1], [0, -1], [0, 1, 2], None]), keep=st.booleans())
def test_reductions(name, x, axes, keep):
    expected = REDUCTIONS[name](torch.from_numpy(x), dim=axes or [0, 1, 2], keepdim=keep)
    np.testing.assert_allclose(op(name)(x, axes, keep), expected, rtol=1e-5, atol=1e-5)
    assert op(name)(x, axes, keep).shape == tuple(expected.shape)


def test_product_and_infinite_sums():
    x = normal(3, 4)
    same(op("reduce_prod")(x, [1]), torch.from_numpy(x).prod(1))
    x = np.array([[-np.inf, -np.inf], [0, np.inf]], np.float32)
    with np.errstate(all="ignore"):
        same(op("reduce_log_sum_exp")(x, [1]), torch.logsumexp(torch.from_numpy(x), 1))


@given(x=hnp.arrays(np.int32, (2, 5), elements=st.integers(0, 3)), axis=st.sampled_from([0, 1, -1]), keep=st.booleans())
def test_places_of_extremes_are_the_first(x, axis, keep):
    same(op("reduce_argmax")(x, axis, keep), np.argmax(x, axis, keepdims=keep))
    same(op("reduce_argmin")(x, axis, keep), np.argmin(x, axis, keepdims=keep))
    assert OPS["reduce_argmax"](x, axis, keep, "uint16").dtype == np.uint16
    with pytest.raises(UnsupportedError, match="int7"):
        OPS["reduce_argmin"](x, axis, keep, "int7")


@given(x=floats((2, 3, 4), st.floats(-1e4, 1e4, width=32)), axis=st.sampled_from([0, 1, 2, -1]))
def test_softmax(x, axis):
    same(op("softmax")(x, axis), F.softmax(torch.from_numpy(x), axis))


@given(x=floats((2, 3, 4)), reverse=st.booleans(), exclusive=st.booleans(), axis=st.sampled_from([0, 1, -1]))
def test_cumsum(x, reverse, exclusive, axis):
    flipped = torch.from_numpy(x).flip(axis) if reverse else torch.from_numpy(x)
    total = flipped.cumsum(axis)
    if exclusive:
        total = torch.cat((torch.zeros_like(total.narrow(axis, 0, 1)), total.narrow(axis, 0, total.shape[axis] - 1)), axis)
    np.testing.assert_allclose(op("cumsum")(x, axis, exclusive, reverse), total.flip(axis) if reverse else total, atol=1e-5)


@given(x=hnp.arrays(np.float32, (3, 5), elements=st.integers(-3, 3).map(float)), axis=st.sampled_from([0, 1, -1]), ascending=st.booleans())
def test_sorting_is_stable(x, axis, ascending):
    values, places = torch.from_numpy(x).sort(dim=axis, descending=not ascending, stable=True)
    same(op("argsort")(x, axis, ascending), places.int())
    found = op("topk")(x, 2, axis, ascending)
    same(found[0], values.narrow(axis, 0, 2))
    same(found[1], places.narrow(axis, 0, 2).int())
    same(OPS["topk"](x, -1, axis, ascending, return_indices=False)[0], values)
    same(np.sort(OPS["topk"](x, 2, axis, ascending, sort=False)[0], axis), values.narrow(axis, 0, 2).sort(axis).values)


def test_what_is_no_number_is_not_sorted():
    with pytest.raises(MilError, match="no number"):
        OPS["argsort"](np.array([1, np.nan], np.float32))


def test_norms():
    x, gamma, beta = normal(2, 3, 4, 5), normal(3), normal(3, seed=1)
    exact, g, b = (torch.from_numpy(array) for array in (x, gamma, beta))
    mean, variance = normal(3, seed=2), np.abs(normal(3, seed=3))
    same(op("batch_norm")(x, mean, variance, gamma, beta, 1e-3), F.batch_norm(exact, torch.from_numpy(mean), torch.from_numpy(variance), g, b, eps=1e-3), 1e-5)
    same(OPS["batch_norm"](x, mean, variance), F.batch_norm(exact, torch.from_numpy(mean), torch.from_numpy(variance)), 1e-5)
    same(op("instance_norm")(x, gamma, beta, 1e-3), F.instance_norm(exact, weight=g, bias=b, eps=1e-3), 1e-5)
    weight, bias = normal(4, 5), normal(4, 5, seed=4)
    same(op("layer_norm")(x, [-2, -1], weight, bias, 1e-3), F.layer_norm(exact, (4, 5), torch.from_numpy(weight), torch.from_numpy(bias), 1e-3), 1e-5)
    same(OPS["layer_norm"](x), F.layer_norm(exact, x.shape), 1e-5)
    same(op("l2_norm")(x, 0.5), exact / (exact.square().sum((-3, -2, -1), keepdim=True) + 0.5).sqrt())


def test_moving_values():
    x = normal(2, 3, 4)
    exact = torch.from_numpy(x)
    same(op("reshape")(x, [0, 0, -1]), exact)
    same(OPS["reshape"](x, [6, -1]), exact.reshape(6, -1))
    same(op("transpose")(x, [2, 0, 1]), exact.permute(2, 0, 1))
    same(op("expand_dims")(x, [0, -1]), exact[None, ..., None])
    same(op("squeeze")(x[None, ..., None], [0, -1]), exact)
    same(OPS["squeeze"](x[:, :1]), exact[:, 0])
    same(op("concat")([x, x[:, :1]], 1), torch.cat((exact, exact[:, :1]), 1))
    same(op("concat")([x, -x], 1, True), torch.stack((exact, -exact), 2).flatten(1, 2))
    same(op("stack")([x, -x], -1), torch.stack((exact, -exact), -1))
    for found, expected in zip(op("split")(x, 2, split_sizes=[1, 3]), exact.split([1, 3], 2), strict=True):
        same(found, expected)
    for found, expected in zip(OPS["split"](x, 2, 2), exact.chunk(2, 2), strict=True):
        same(found, expected)
    same(op("tile")(x, [2, 1, 3]), exact.repeat(2, 1, 3))
    same(op("reverse")(x, [0, -1]), exact.flip(0, -1))
    same(OPS["reverse"](x), exact.flip(0, 1, 2))
    same(op("shape")(x), np.array([2, 3, 4], np.int32))
    same(op("slice_by_size")(x, [0, -2, 1], [-1, 1, 2]), exact[:, 1:2, 1:3])
    same(op("band_part")(x, 1, 0), exact.tril().triu(-1))
    same(OPS["band_part"](x), exact)
    same(op("pixel_shuffle")(normal(1, 8, 2, 3), 2), F.pixel_shuffle(torch.from_numpy(normal(1, 8, 2, 3)), 2))
    same(op("pixel_unshuffle")(normal(1, 2, 4, 6), 2), F.pixel_unshuffle(torch.from_numpy(normal(1, 2, 4, 6)), 2))


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("split", {"axis": 2, "num_splits": 3}, "equal parts"),
        ("split", {"axis": 2, "split_sizes": [1, 1]}, "split sizes"),
        ("split", {"axis": 2}, "without num_splits"),
        ("tile", {"reps": [2]}, "reps"),
        ("slice_by_size", {"begin": [0, 0, 3], "size": [1, 1, 2]}, "slices 3 to 5"),
        ("pad", {"pad": [1]}, "for 3 axes"),
        ("pad", {"pad": [9, 9], "mode": "reflect"}, "reflects"),
        ("pad", {"pad": [1, 1], "mode": "symmetric"}, "pad mode"),
        ("slice_by_index", {"begin": [0], "end": [1]}, "3 axes"),
        ("slice_by_index", {"begin": [0, 0, 7], "end": [1, 1, 1], "squeeze_mask": [0, 0, 1]}, "place 7"),
        ("slice_update", {"update": np.zeros((1, 1, 2), np.float32), "begin": [0, 0, 0], "end": [1, 1, 1]}, "writes shape"),
    ],
)
def test_what_does_not_fit_is_told(name, arguments, message):
    with pytest.raises(MilError, match=message):
        op(name)(normal(2, 3, 4), **arguments)


def test_arrays_of_absurd_sizes_are_refused():
    with pytest.raises(MilError, match="would make"):
        OPS["fill"]([2**20, 2**20])
    with pytest.raises(MilError, match="would make"):
        OPS["range_1d"](np.float32(1e20), np.float32(0), np.float32(1))
    with pytest.raises(MilError, match="step 0"):
        OPS["range_1d"](np.int32(3), np.int32(0), np.int32(0))


@given(
    pads=st.lists(st.integers(0, 2), min_size=4, max_size=4),
    mode=st.sampled_from([("constant", "constant"), ("reflect", "reflect"), ("replicate", "replicate")]),
)
def test_pad(pads, mode):
    x = normal(1, 2, 4, 3)
    exact = F.pad(torch.from_numpy(x), (pads[2], pads[3], pads[0], pads[1]), mode[1], **({"value": 2.0} if mode[0] == "constant" else {}))
    same(op("pad")(x, pads, mode[0], np.float32(2)), exact)


@given(start=st.integers(-5, 5), end=st.integers(-5, 5), step=st.sampled_from([1, 2, 3, -1, -2]))
def test_range(start, end, step):
    same(op("range_1d")(np.int32(end), np.int32(start), np.int32(step)), np.array(list(range(start, end, step)), np.int32))
    same(OPS["range_1d"](np.float32(end), np.float32(start), np.float32(step / 2)), np.arange(start, end, step / 2, dtype=np.float32))


def test_made_arrays():
    same(op("fill")([2, 3], np.float32(1.5)), torch.full((2, 3), 1.5))
    same(op("fill_like")(normal(2, 3), np.int32(7)), torch.full((2, 3), 7))
    ids = np.array([[0, 2], [1, 0]], np.int32)
    same(op("one_hot")(ids, 3), F.one_hot(torch.from_numpy(ids).long(), 3).int())
    same(OPS["one_hot"](ids, 3, 1), F.one_hot(torch.from_numpy(ids).long(), 3).int().permute(0, 2, 1))
    same(OPS["one_hot"](np.array([5, -1], np.int32), 3, on_value=np.float32(2), off_value=np.float32(-1)), np.full((2, 3), -1, np.float32))


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
        whole = slice(None if begin_mask[axis] else begin[axis], None if end_mask[axis] else end[axis], stride[axis])
        places.append(begin[axis] if squeeze_mask[axis] else whole)
    expected = x[tuple(places)]
    same(op("slice_by_index")(x, begin, end, stride, begin_mask, end_mask, squeeze_mask), expected)
    updated = x.copy()
    updated[tuple(places)] = 9
    same(op("slice_update")(x, np.full(expected.shape, 9, np.float32), begin, end, stride, begin_mask, end_mask, squeeze_mask), updated)


@given(data=st.data())
def test_gathers(data):
    x = normal(3, 4, 5)
    exact = torch.from_numpy(x)
    axis = data.draw(st.sampled_from([0, 1, 2, -1]))
    size = x.shape[axis]
    ids = data.draw(hnp.arrays(np.int32, (2, 3), elements=st.integers(0, size - 1)))
    lead = list(exact.shape[: axis % 3])
    expected = exact.index_select(axis, torch.from_numpy(ids).flatten().long()).reshape(*lead, 2, 3, *exact.shape[axis % 3 + 1 :])
    same(op("gather")(x, ids, axis), expected)
    along = data.draw(hnp.arrays(np.int32, x.shape, elements=st.integers(0, size - 1)))
    same(op("gather_along_axis")(x, along, axis), exact.gather(axis, torch.from_numpy(along).long()))
    batched = data.draw(hnp.arrays(np.int32, (3, 2), elements=st.integers(0, 3)))
    same(OPS["gather"](x, batched, 1, 1), torch.stack([row[torch.from_numpy(ids).long()] for row, ids in zip(exact, batched, strict=True)]))
    pairs = np.stack((batched % 3, batched), -1)
    same(op("gather_nd")(x, pairs), exact[torch.from_numpy(pairs[..., 0]).long(), torch.from_numpy(pairs[..., 1]).long()])
    same(OPS["gather_nd"](x, batched[..., None], 1), torch.stack([row[torch.from_numpy(ids).long()] for row, ids in zip(exact, batched, strict=True)]))


@pytest.mark.parametrize("index", [-1, 3])
@pytest.mark.parametrize("name", ["gather", "gather_along_axis", "gather_nd", "scatter"])
def test_an_index_out_of_bounds_is_told(name, index):
    x, ids = normal(3, 2), np.array([[index, 0]], np.int32)
    with pytest.raises(MilError, match="into an axis of 3"):
        OPS[name](x, *([ids[0], normal(2, 2)] if name == "scatter" else [ids]))


MODES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


@pytest.mark.parametrize("mode", [*MODES, "update", "sub", "div"])
def test_scatters(mode):
    data, ids = normal(4, 3), np.array([2, 0, 2], np.int32) if mode in MODES else np.array([2, 0, 3], np.int32)
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
            torch.from_numpy(data).scatter_reduce(0, torch.from_numpy(along).long(), torch.from_numpy(updates), MODES[mode]),
        )
    with pytest.raises(UnsupportedError, match="scatter mode"):
        OPS["scatter"](data, ids, updates, 0, "xor")


def test_places_of_what_is_not_zero():
    x = np.array([[0, 1, 0], [2, 0, 3]], np.float32)
    same(op("non_zero")(x), torch.from_numpy(x).nonzero().int())


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


@given(data=hnp.arrays(np.int8, (4, 6)), offset=hnp.arrays(np.int8, (4, 3)), signed=st.booleans())
def test_blockwise_scales(data, offset, signed):
    scale = np.abs(normal(4, 3)) + 0.1
    exact = data.astype(np.float64) - (np.repeat(offset, 2, 1).astype(np.float64) if signed else 0)
    same(op("constexpr_blockwise_shift_scale")(data, scale, offset if signed else None), (exact * np.repeat(scale, 2, 1)).astype(np.float32))
    mask = (data > 0).astype(np.uint8)
    found = op("constexpr_sparse_blockwise_shift_scale")(mask, data[data > 0], scale)
    same(found[1], (data * np.repeat(scale, 2, 1)).astype(np.float32)[data > 0])
    with pytest.raises(MilError, match="blocks of shape"):
        OPS["constexpr_blockwise_shift_scale"](data, normal(3, 3))


@given(data=hnp.arrays(np.uint8, (3, 4)), axis=st.sampled_from([0, 1, -1]))
def test_affine_scales(data, axis):
    size = data.shape[axis]
    scale, zero = np.abs(normal(size)) + 0.1, np.arange(size, dtype=np.uint8)
    shaped = [-1, 1] if axis == 0 else [1, -1]
    expected = (data.astype(np.float32) - zero.reshape(shaped)) * scale.reshape(shaped)
    same(op("constexpr_affine_dequantize")(data, zero, scale, axis), expected)
    same(op("dequantize")(data, scale, zero, axis), expected)
    same(OPS["dequantize"](data, np.float32(0.5)), data * np.float32(0.5))
    with pytest.raises(MilError, match="without an axis"):
        OPS["dequantize"](data, scale)


@pytest.mark.parametrize(("dtype", "kind"), [("int8", torch.qint8), ("uint8", torch.quint8)])
def test_quantize(dtype, kind):
    x, scale, zero = 3 * normal(3, 40), np.array([0.1, 0.02, 0.5], np.float32), np.array([3, 0, 7])
    expected = torch.quantize_per_channel(torch.from_numpy(x), torch.from_numpy(scale), torch.from_numpy(zero), 0, kind).int_repr()
    same(op("quantize")(x, scale, dtype, zero.astype(dtype), 0), expected.int().numpy().astype(dtype))
    with pytest.raises(UnsupportedError, match="quantize to"):
        OPS["quantize"](x, scale, "int4")


@given(data=st.data(), blocks=st.sampled_from([(1, 1), (2, 1), (2, 3), (4, 6)]))
def test_tables(data, blocks):
    indices = data.draw(hnp.arrays(np.uint8, (4, 6), elements=st.integers(0, 3)))
    lut = normal(*blocks, 4, 1)
    expected = np.empty((4, 6), np.float32)
    for row, column in np.ndindex(4, 6):
        expected[row, column] = lut[row * blocks[0] // 4, column * blocks[1] // 6, indices[row, column], 0]
    same(op("constexpr_lut_to_dense")(indices, lut), expected)
    vectors = normal(*blocks, 4, 2, seed=1)
    wide = np.empty((8, 6), np.float32)
    for row, column in np.ndindex(4, 6):
        wide[2 * row : 2 * row + 2, column] = vectors[row * blocks[0] // 4, column * blocks[1] // 6, indices[row, column]]
    same(OPS["constexpr_lut_to_dense"](indices, vectors, 0), wide)
    mask = (indices > 1).astype(np.uint8)
    same(op("constexpr_lut_to_sparse")(mask, indices[indices > 1], lut)[1], expected[indices > 1])
    with pytest.raises(MilError, match="without vector_axis"):
        OPS["constexpr_lut_to_dense"](indices, vectors)


def test_packed_tables_and_masks():
    lut, indices = normal(4), np.array([[0, 1, 2], [3, 3, 1]], np.uint8)
    packed = np.array([0 | 1 << 2 | 2 << 4 | 3 << 6, 3 | 1 << 2], np.uint8)
    same(OPS["constexpr_lut_to_dense"](packed, lut, shape=[2, 3]), lut[indices])
    same(op("constexpr_sparse_to_dense")(np.array([5, 6], np.float32), np.array([[0, 1], [1, 0]], np.uint8)), np.array([[0, 5], [6, 0]], np.float32))
    same(OPS["constexpr_sparse_to_dense"](np.array([5, 6], np.float32), np.array([0b0110], np.uint8), [2, 2]), np.array([[0, 5], [6, 0]], np.float32))
    same(op("constexpr_cast")(normal(3).astype(np.float16), "fp32"), normal(3).astype(np.float16).astype(np.float32))
    with pytest.raises(MilError, match="values for a mask"):
        OPS["constexpr_sparse_to_dense"](normal(3), np.array([[0, 1]], np.uint8))
    with pytest.raises(MilError, match="power of two"):
        OPS["constexpr_lut_to_dense"](packed, normal(3), shape=[2, 3])


def test_no_operation_is_without_a_test():
    """Each is named in this file: called by name, or a row of a table of calls."""
    source = Path(__file__).read_text()
    assert [name for name in OPS if f'"{name}"' not in source] == []


def test_definitions_that_differ_from_pytorchs():
    """Each from the text of the op set."""
    same(op("floor_div")(np.float32([1.0, 7.0]), np.float32([0.1, 2.0])), torch.floor_divide(torch.tensor([1.0, 7.0]), torch.tensor([0.1, 2.0])))
    assert OPS["reshape"](normal(2, 50), [1, 0, -1, 0]).shape == (1, 1, 2, 50)  # zeros count from the right
    assert OPS["max_pool"](normal(1, 1, 3), [1], "custom", [4], [0, 0], True).shape == (1, 1, 2)  # no padding: the last window stays


@pytest.mark.parametrize("extra", [0, 1, 2])
def test_transposed_convolutions_of_a_given_size(extra):
    x, weight = normal(1, 2, 5), normal(2, 3, 4, seed=1)
    expected = F.conv_transpose1d(torch.from_numpy(x), torch.from_numpy(weight), stride=3, padding=1, output_padding=extra)
    same(OPS["conv_transpose"](x, weight, None, [1, 1], list(expected.shape), "custom", [3]), expected, 1e-5)
    whole = F.conv_transpose1d(torch.from_numpy(x), torch.from_numpy(weight), stride=3)  # 16 long
    same(OPS["conv_transpose"](x, weight, None, None, None, "same", [3]), whole[..., 0:15], 1e-5)
    same(OPS["conv_transpose"](x, weight, None, None, [1, 3, 15], "same", [3]), whole[..., 0:15], 1e-5)


@pytest.mark.parametrize(("value", "dtype"), [(300.0, "int8"), (1e20, "int32"), (-1.0, "uint8"), (float("nan"), "int32"), (float("inf"), "int16")])
def test_a_number_that_the_type_cannot_hold_is_not_cast(value, dtype):
    with pytest.raises(MilError, match="casts values"):
        OPS["cast"](np.array([value], np.float32), dtype)


def test_an_integer_has_no_negative_power():
    with pytest.raises(MilError, match="negative power"):
        OPS["pow"](np.array([0], np.int32), np.array([-1], np.int32))


def _defaults(definition, version):
    """What coremltools says of an operation's inputs: name -> (optional, default). Some defaults depend on the rank of x."""
    operation = object.__new__(definition)
    tensor = SimpleNamespace(rank=4, shape=(1, 2, 3, 4), dtype=version, val=None)
    operation.x, operation.weight, operation.return_indices = tensor, tensor, SimpleNamespace(val=True)
    defaults = dict(definition.default_inputs(operation).items())
    return {name: (kind.optional, defaults.get(name)) for name, kind in definition.input_spec.input_types.items()}


@pytest.mark.parametrize("name", sorted(OPS))
def test_names_and_defaults_are_those_of_the_op_set(name):
    from coremltools.converters.mil.mil import types
    from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

    own = SIGNATURES[name].parameters
    known: set[str] = set()
    for definition in SSAOpRegistry.core_ops[name].values():
        for key, (optional, default) in _defaults(definition, types.fp32).items():
            known.add(key)
            if not optional:
                continue
            found = own[key].default
            assert found is not inspect.Parameter.empty, f"{key} is optional"
            if found is not None:
                assert found == default if isinstance(found, str) else np.float32(found) == np.float32(default)
            else:  # left out, it means what the default says: ones, no padding, all axes, nothing added
                assert default is None or isinstance(default, range) or np.all(np.isin(default, (0, 1))), f"{key}: {default}"
    assert own.keys() == known
