"""Conversion of module trees through files: every tensor has a layout and a name of its own."""

import json
import math
import re
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.model.tree_family.family import Node, Tree
from support.model.tree_family.layouts import CONFIG, WEIGHTS, TreeConfig

from voxport.export.__main__ import main as export
from voxport.model.mlx.layout import WEIGHTS as MLX_WEIGHTS
from voxport.model.mlx.tensor_layouts import LAYOUT_KEY

pytestmark = pytest.mark.usefixtures("tree_family")

BITS = {torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16}


Config = dict[str, Node]
MLX_ORDERS = {
    "Conv1d": (0, 2, 1),
    "ConvTranspose1d": (1, 2, 0),
}


class Tensor(NamedTuple):
    """`shape` in PyTorch, `mlx_name`, and `order`: axes of PyTorch in the order of MLX, or None.

    is_moved: whether mlx-audio stores it in the order of MLX.
    """

    shape: tuple[int, ...]
    mlx_name: str
    order: tuple[int, ...] | None
    is_moved: bool

    def for_mlx(self, value: torch.Tensor) -> torch.Tensor:
        return value if self.order is None else value.permute(self.order).contiguous()

    def for_mlx_audio(self, value: torch.Tensor) -> torch.Tensor:
        return self.for_mlx(value) if self.is_moved else value

    def layout_by(self, tag: str) -> str:
        """The layout that a tag gives to a kernel that fits both."""
        if tag == "mlx-audio":
            return "mlx" if self.is_moved else "pytorch"
        return tag

    @property
    def is_ambiguous(self) -> bool:
        """Whether the shapes are equal, and the order of values is not."""
        numbers = torch.arange(math.prod(self.shape)).reshape(self.shape)
        moved = self.for_mlx(numbers)
        return moved.shape == numbers.shape and not torch.equal(moved, numbers)


def random_bits(shape: tuple[int, ...], dtype: torch.dtype, random: Random) -> torch.Tensor:
    """Finite values, both zeros and subnormal numbers among them."""
    generator = torch.Generator().manual_seed(random.getrandbits(32))
    width = torch.iinfo(BITS[dtype]).bits
    values = torch.randint(-(2 ** (width - 1)), 2 ** (width - 1), shape, generator=generator)
    found = values.to(BITS[dtype]).view(dtype)
    return torch.where(found.isfinite(), found, torch.zeros((), dtype=dtype).neg())


def described(config: Config) -> dict[str, Tensor]:
    """What MLX makes of each tensor, by published name. Uses none of the project's rules."""
    with torch.device("meta"):
        root = Tree(TreeConfig.model_validate(config))
    found: dict[str, Tensor] = {}
    for name, parameter in root.named_parameters():
        path = re.sub(r"(\.parametrizations\.weight)?\.\w+$", "", name)
        module, shape = root.get_submodule(path), tuple(parameter.shape)
        kernel = type(module).__name__.removeprefix("Parametrized")
        order = MLX_ORDERS.get(kernel) if len(shape) > 2 else None
        other = re.sub("^moved", "model.blocks", re.sub("^kept", "codec", name))
        found[name] = Tensor(shape, other, order, name.startswith("moved."))
    return found


def write(
    path: Path, config: Config, tag: str | None, values: dict[str, torch.Tensor], random: Random
) -> bool:
    """Writes weights that mix layouts and names. Returns whether a kernel fits both layouts.

    Such a kernel has the layout of the tag, if there is one.
    """
    content, is_ambiguous = {}, False
    for name, tensor in described(config).items():
        layout = random.choice(["pytorch", "mlx"])
        if tensor.is_ambiguous:
            is_ambiguous, layout = True, tensor.layout_by(tag) if tag else layout
        value = tensor.for_mlx(values[name]) if layout == "mlx" else values[name]
        content[random.choice([name, tensor.mlx_name])] = value
    path.parent.mkdir()
    save_file(content, path, {LAYOUT_KEY: tag} if tag else None)
    (path.parent / CONFIG).write_text(json.dumps(config))
    (path.parent / "config.json").write_text(json.dumps({"model_type": "tree"}))
    return is_ambiguous


def convert(source: Path, to: str, *options: str) -> tuple[int, Path]:
    out = source.with_name("-".join((source.name, to, *options)))
    return export(["convert", str(source), str(out), "--to", to, *options]), out


def assert_equal(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """To the bit, which tells the two zeros apart."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        bits = BITS[tensor.dtype]
        assert torch.equal(found[name].view(bits), tensor.view(bits)), name


def converted(source: Path, to: str, *options: str) -> Path:
    code, out = convert(source, to, *options)
    assert code == 0
    return out


SQUARE: Config = {"moved": [["conv1d", 3, 2, 3, ""]], "kept": []}
SQUARES: Config = {"moved": [["conv1d", 2, 1, 2, ""]], "kept": [["conv1d", 2, 1, 2, ""]]}
PLAIN: Config = {
    "moved": [["conv1d", 3, 2, 4, ""], [["transposed1d", 2, 3, 4, ""], ["linear", 2, 3]], ["table", 3, 2]],
    "kept": [["conv1d", 3, 1, 2, ""], ["transposed1d", 4, 3, 2, ""], ["linear", 2, 2]],
}
NORMS: Config = {
    "moved": [["conv1d", 3, 4, 5, "g, v"], [["transposed1d", 3, 4, 2, "originals"], ["linear", 3, 2]]],
    "kept": [["conv1d", 2, 3, 4, "originals"], ["transposed1d", 3, 2, 4, "g, v"]],
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("place", [WEIGHTS, MLX_WEIGHTS])
@pytest.mark.parametrize("tag", [None, "pytorch", "mlx", "mlx-audio"])
@pytest.mark.parametrize("config", [SQUARE, SQUARES, PLAIN, NORMS])
def test_a_mixed_folder_converts_to_the_bit_or_is_refused_as_ambiguous(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: Config, tag: str | None, place: str, seed: int
) -> None:
    random, source = Random(seed), tmp_path / "source"
    tensors = described(config)
    values = {
        name: random_bits(tensor.shape, random.choice(list(BITS)), random) for name, tensor in tensors.items()
    }
    if write(source / place, config, tag, values, random) and tag is None:
        capsys.readouterr()
        for to in ("mlx", "published"):
            code, out = convert(source, to)
            assert code == 5 and not out.exists()
            assert "fits the layouts of PyTorch and of MLX" in capsys.readouterr().err
        return
    mlx, plain = converted(source, "mlx", "--layout", "mlx-audio"), converted(source, "published")
    assert_equal(load_file(plain / WEIGHTS), values)
    expected = {tensor.mlx_name: tensor.for_mlx_audio(values[name]) for name, tensor in tensors.items()}
    assert_equal(load_file(mlx / MLX_WEIGHTS), expected)
    for first, to, path in (
        (plain, "mlx", mlx / MLX_WEIGHTS),
        (mlx, "published", plain / WEIGHTS),
        (mlx, "mlx", mlx / MLX_WEIGHTS),
        (plain, "published", plain / WEIGHTS),
    ):
        assert (converted(first, to) / path.name).read_bytes() == path.read_bytes()
    if not any(name.endswith(("weight_g", "original0")) for name in tensors):  # MLX has no weight norms
        assert_the_layout_of_mlx_stays(source, tensors, values)


def assert_the_layout_of_mlx_stays(
    source: Path, tensors: dict[str, Tensor], values: dict[str, torch.Tensor]
) -> None:
    """There, again without the option, and back."""
    first = converted(source, "mlx", "--layout", "mlx")
    expected = {tensor.mlx_name: tensor.for_mlx(values[name]) for name, tensor in tensors.items()}
    assert_equal(load_file(first / MLX_WEIGHTS), expected)
    again = converted(first, "mlx")
    assert (again / MLX_WEIGHTS).read_bytes() == (first / MLX_WEIGHTS).read_bytes()
    assert_equal(load_file(converted(again, "published") / WEIGHTS), values)
