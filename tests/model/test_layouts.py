"""Layouts of random module trees: there and back, mixtures, and refusal of what is ambiguous."""

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from voxport.bundle.errors import ConfigError
from voxport.model.families import layouts_of
from voxport.model.mlx.layout import MlxLayout, NotInMlx
from voxport.model.mlx.tensor_layouts import ORDERS, Stored, StoredAs, recurrent_names, stored_tensors

SIZES = st.integers(1, 5)
CONVOLUTIONS = list(ORDERS)


@st.composite
def modules(draw: st.DrawFn) -> nn.Module:
    kind = draw(st.sampled_from([*CONVOLUTIONS, nn.Linear, nn.LSTM, nn.Embedding]))
    first, second = draw(SIZES), draw(SIZES)
    if kind not in CONVOLUTIONS:
        found: nn.Module = kind(first, second)
        return found
    convolution = kind(first, second, draw(SIZES))
    return weight_norm(convolution) if draw(st.booleans()) else convolution


TREES = st.lists(modules(), min_size=1, max_size=5).map(lambda parts: nn.Sequential(*parts))


@given(TREES)
def test_there_and_back_is_the_identity_to_the_bit(root: nn.Sequential) -> None:
    values = dict(root.named_parameters())
    for name, stored in stored_tensors(root).items():
        mlx = stored.converted(values[name], "pytorch", "mlx")
        assert tuple(mlx.shape) == stored.mlx_shape
        assert torch.equal(stored.converted(mlx, "mlx", "pytorch"), values[name])
        assert torch.equal(stored.converted(mlx, "mlx", "mlx"), mlx)


@given(TREES, st.randoms())
def test_each_layout_of_a_mixture_is_told_by_its_shape(root: nn.Sequential, random: Random) -> None:
    for name, stored in stored_tensors(root).items():
        layout: Any = random.choice(["pytorch", "mlx"])
        value = stored.converted(dict(root.named_parameters())[name], "pytorch", layout)
        possible = stored.layouts(tuple(value.shape))
        assert layout in possible
        if len(possible) == 2 and not stored.is_ambiguous:  # both layouts have the same values
            assert torch.equal(
                stored.converted(value, "mlx", "pytorch"), stored.converted(value, "pytorch", "pytorch")
            )


@given(TREES)
def test_what_is_ambiguous_has_other_values_in_the_other_layout(root: nn.Sequential) -> None:
    for stored in stored_tensors(root).values():
        count = int(np.prod(stored.shape))
        value = torch.arange(count).reshape(stored.shape)
        differs = not torch.equal(stored.converted(value, "pytorch", "mlx").reshape(-1), value.reshape(-1))
        assert stored.is_ambiguous == (differs and stored.shape == stored.mlx_shape)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv1d(3, 4, 5), (4, 5, 3)),
        (nn.ConvTranspose1d(3, 4, 5), (4, 5, 3)),
        (nn.Conv2d(3, 4, (5, 6)), (4, 5, 6, 3)),
        (nn.ConvTranspose2d(3, 4, (5, 6)), (4, 5, 6, 3)),
        (nn.Linear(3, 4), (4, 3)),
    ],
)
def test_the_layout_of_mlx(module: nn.Module, shape: tuple[int, ...]) -> None:
    """MLX's own modules have these shapes."""
    mlx = pytest.importorskip("mlx.nn", reason="MLX has no build for this system")
    stored = stored_tensors(module)["weight"]
    kind = type(module).__name__
    sizes = {"Conv1d": 5, "ConvTranspose1d": 5, "Conv2d": (5, 6), "ConvTranspose2d": (5, 6)}
    arguments = (3, 4, sizes[kind]) if kind in sizes else (3, 4)
    assert stored.mlx_shape == shape == getattr(mlx, kind)(*arguments).weight.shape


@pytest.mark.parametrize("kind", ["Conv1d", "ConvTranspose1d", "Conv2d", "ConvTranspose2d"])
def test_mlx_computes_the_same_from_the_reordered_kernel(kind: str) -> None:
    mx = pytest.importorskip("mlx.core", reason="MLX has no build for this system")
    import mlx.nn

    mx.set_default_device(mx.cpu)
    torch.manual_seed(0)
    axes, size = (1, 4) if kind.endswith("1d") else (2, (4, 3))
    module = getattr(nn, kind)(5, 6, size, stride=2)
    other = getattr(mlx.nn, kind)(5, 6, size, stride=2)
    stored = stored_tensors(module)["weight"]
    other.weight = mx.array(stored.converted(module.weight.detach(), "pytorch", "mlx").numpy())
    other.bias = mx.array(module.bias.detach().numpy())
    x = torch.randn(1, 5, *[9] * axes)
    found = np.array(other(mx.array(np.moveaxis(x.numpy(), 1, -1))))
    np.testing.assert_allclose(np.moveaxis(found, -1, 1), module(x).detach().numpy(), atol=1e-5)


def test_names_of_a_recurrent_layer() -> None:
    root = nn.ModuleDict({"rnn": nn.LSTM(2, 3, bidirectional=True)})
    names = recurrent_names(root)
    assert names["rnn.weight_ih_l0"] == "rnn.Wx_forward"
    assert names["rnn.weight_hh_l0_reverse"] == "rnn.Wh_backward"
    assert names.keys() == dict(root.named_parameters()).keys()


def test_names_of_a_recurrent_layer_of_one_direction() -> None:
    """As in MLX's own module."""
    mlx = pytest.importorskip("mlx.nn", reason="MLX has no build for this system")
    names = recurrent_names(nn.LSTM(2, 3))
    assert (names["weight_ih_l0"], names["weight_hh_l0"]) == ("Wx", "Wh")
    layer = mlx.LSTM(2, 3)
    assert (layer.Wx.shape, layer.Wh.shape) == ((12, 2), (12, 3))


def test_recurrent_layers_of_several_levels_keep_their_names() -> None:
    assert recurrent_names(nn.LSTM(2, 3, num_layers=2)) == {}


def test_a_grouped_transposed_convolution_is_refused() -> None:
    root = nn.ModuleDict({"up": nn.ConvTranspose1d(4, 4, 3, groups=2)})
    with pytest.raises(ConfigError, match="up: a transposed convolution of 2 groups has no layout in MLX"):
        stored_tensors(root)
    assert stored_tensors(nn.Conv1d(4, 4, 3, groups=2))["weight"].mlx_shape == (4, 3, 2)


def test_a_holder_says_which_module_its_parameters_are_of() -> None:
    parts = nn.ParameterDict({"original1": torch.empty(3, 4, 5)})
    root = StoredAs(nn.ConvTranspose1d, {"parametrizations": nn.ModuleDict({"weight": parts})})
    assert stored_tensors(root)["parametrizations.weight.original1"].mlx_shape == (4, 5, 3)


def test_a_square_kernel_is_ambiguous_and_a_kernel_of_one_is_not() -> None:
    assert Stored((4, 3, 3), (0, 2, 1)).is_ambiguous
    assert not Stored((4, 1, 1), (0, 2, 1)).is_ambiguous
    assert not Stored((4, 3, 2), (0, 2, 1)).is_ambiguous


NAMES: MlxLayout = NotInMlx(layouts_of("voxtral_tts")[0])
NAMES.renames = (("layers.*.wq.", "model.layers.*.q_proj."), ("norm.", "model.norm."))


@pytest.mark.parametrize(
    ("published", "name"),
    [
        ("layers.12.wq.weight", "model.layers.12.q_proj.weight"),
        ("norm.weight", "model.norm.weight"),
        ("head.weight", "head.weight"),
    ],
)
def test_names_there_and_back(published: str, name: str) -> None:
    assert NAMES.name(published) == name
    assert NAMES.published(name) == NAMES.published(published) == published
