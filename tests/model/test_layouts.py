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

from voxport.model.families import layouts_of
from voxport.model.mlx.layout import MlxLayout
from voxport.model.mlx.tensor_layouts import ORDERS, Stored, stored_tensors

SIZES = st.integers(1, 5)
CONVOLUTIONS = list(ORDERS)


@st.composite
def modules(draw: st.DrawFn) -> nn.Module:
    kind = draw(st.sampled_from([*CONVOLUTIONS, nn.Linear, nn.Embedding]))
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
        (nn.Linear(3, 4), (4, 3)),
    ],
)
def test_the_layout_of_mlx(module: nn.Module, shape: tuple[int, ...]) -> None:
    """MLX's own modules have these shapes."""
    mlx = pytest.importorskip("mlx.nn", reason="MLX has no build for this system")
    stored = stored_tensors(module)["weight"]
    kind = type(module).__name__
    arguments = (3, 4) if kind == "Linear" else (3, 4, 5)
    assert stored.mlx_shape == shape == getattr(mlx, kind)(*arguments).weight.shape


@pytest.mark.parametrize("kind", ["Conv1d", "ConvTranspose1d"])
def test_mlx_computes_the_same_from_the_reordered_kernel(kind: str) -> None:
    mx = pytest.importorskip("mlx.core", reason="MLX has no build for this system")
    import mlx.nn

    mx.set_default_device(mx.cpu)
    torch.manual_seed(0)
    module = getattr(nn, kind)(5, 6, 4, stride=2)
    other = getattr(mlx.nn, kind)(5, 6, 4, stride=2)
    stored = stored_tensors(module)["weight"]
    other.weight = mx.array(stored.converted(module.weight.detach(), "pytorch", "mlx").numpy())
    other.bias = mx.array(module.bias.detach().numpy())
    x = torch.randn(1, 5, 9)
    found = np.array(other(mx.array(np.moveaxis(x.numpy(), 1, -1))))
    np.testing.assert_allclose(np.moveaxis(found, -1, 1), module(x).detach().numpy(), atol=1e-5)


def test_a_square_kernel_is_ambiguous_and_a_kernel_of_one_is_not() -> None:
    assert Stored((4, 3, 3), (0, 2, 1)).is_ambiguous
    assert not Stored((4, 1, 1), (0, 2, 1)).is_ambiguous
    assert not Stored((4, 3, 2), (0, 2, 1)).is_ambiguous


NAMES: MlxLayout = MlxLayout(layouts_of("voxtral_tts")[0])
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
