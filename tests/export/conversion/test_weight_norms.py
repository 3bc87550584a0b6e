"""Weight norms folded into their weights by `--layout mlx`, and weights in place of weight norms."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.export.conversions import WEIGHTS as MLX_WEIGHTS
from support.export.conversions import convert, rewrite
from support.files import contents
from support.model.tree_family.family import Tree
from support.model.tree_family.layouts import CONFIG, WEIGHTS, TreeConfig

from voxport.model.mlx.tensor_layouts import LAYOUT_KEY

pytestmark = pytest.mark.usefixtures("tree_family")

TREE: dict[str, list[Any]] = {
    "moved": [["conv1d", 3, 4, 5, "g, v"], ["transposed1d", 3, 4, 2, "originals"], ["linear", 3, 2]],
    "kept": [["conv1d", 2, 3, 4, "originals"], ["transposed1d", 3, 2, 3, "g, v"]],
}
PLACES = {  # of each weight norm: MLX's name of its weight, and the axes of PyTorch in the order of MLX
    "moved.0.weight_": ("model.blocks.0.weight", (0, 2, 1)),
    "moved.1.parametrizations.weight.original": ("model.blocks.1.weight", (1, 2, 0)),
    "kept.0.parametrizations.weight.original": ("codec.0.weight", (0, 2, 1)),
    "kept.1.weight_": ("codec.1.weight", (1, 2, 0)),
}
RTOL = 2e-6  # torch's norm in float32, over up to 40 values, and two products: (40 / 2 + 2) * 2^-24


def write(folder: Path, dtype: torch.dtype) -> Path:
    """A published folder whose magnitudes are not the norms of their directions."""
    torch.manual_seed(0)
    content = {
        name: torch.randn(tensor.shape).to(dtype)
        for name, tensor in Tree(TreeConfig.model_validate(TREE)).state_dict().items()
    }
    folder.mkdir()
    save_file(content, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(TREE))
    return folder


def weights_of(content: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What torch computes from every weight norm, in float32, by MLX's name and in its layout."""
    found = {}
    for start, (name, order) in PLACES.items():
        v, g = (content[name] for name in sorted(content, reverse=True) if name.startswith(start))
        assert g.numel() < v.numel()
        found[name] = torch._weight_norm(v.float(), g.float(), 0).permute(order)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_layout_of_mlx_has_the_weights_that_torch_computes(tmp_path: Path, dtype: torch.dtype) -> None:
    source = write(tmp_path / "source", dtype)
    assert convert(source, tmp_path / "mlx", "--to", "mlx", "--layout", "mlx") == 0
    found, published = load_file(tmp_path / "mlx" / MLX_WEIGHTS), load_file(source / WEIGHTS)
    expected = weights_of(published)
    others = {name for name in published if name.endswith((".bias", "moved.2.weight"))}
    assert len(found) == len(expected) + len(others)
    for name, weight in expected.items():
        assert found[name].dtype == dtype
        step = RTOL if dtype == torch.float32 else 2**-8 + RTOL
        torch.testing.assert_close(found[name].float(), weight, rtol=step, atol=1e-12)
    with safe_open(tmp_path / "mlx" / MLX_WEIGHTS, framework="pt") as file:
        assert file.metadata()[LAYOUT_KEY] == "mlx"
    assert "4 weight norms are folded" in (tmp_path / "mlx" / "README.md").read_text()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_folded_folder_converts_to_itself_and_to_weight_norms(tmp_path: Path, dtype: torch.dtype) -> None:
    source = write(tmp_path / "source", dtype)
    first, second = tmp_path / "first", tmp_path / "second"
    assert convert(source, first, "--to", "mlx", "--layout", "mlx") == 0
    assert convert(first, second, "--to", "mlx") == 0
    assert contents(second) == contents(first)
    folded = load_file(first / MLX_WEIGHTS)
    for to, name, options in (
        ("published", WEIGHTS, ()),
        ("mlx", MLX_WEIGHTS, ("--layout", "mlx-audio")),
    ):
        assert convert(first, tmp_path / to, "--to", to, *options) == 0
        found = load_file(tmp_path / to / name)
        assert len(found) == len(load_file(source / WEIGHTS))
    for name, weight in weights_of(load_file(tmp_path / "published" / WEIGHTS)).items():
        torch.testing.assert_close(weight, folded[name].float(), rtol=RTOL, atol=1e-12)


def test_a_row_of_zeros_stays_one(tmp_path: Path) -> None:
    source = write(tmp_path / "source", torch.float32)
    assert convert(source, tmp_path / "mlx", "--to", "mlx", "--layout", "mlx") == 0
    rewrite(tmp_path / "mlx" / MLX_WEIGHTS, lambda content: content["codec.0.weight"][1].zero_())
    assert convert(tmp_path / "mlx", tmp_path / "back", "--to", "published") == 0
    weight = weights_of(load_file(tmp_path / "back" / WEIGHTS))["codec.0.weight"]
    assert not weight[1].any() and weight[0].all()


def test_a_direction_of_zeros_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "source", torch.float32)
    rewrite(source / WEIGHTS, lambda content: content["moved.0.weight_v"][2].zero_())
    assert convert(source, tmp_path / "out", "--to", "mlx", "--layout", "mlx") == 5
    assert "moved.0.weight: a row of the direction has only zeros" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert convert(source, tmp_path / "out", "--to", "mlx") == 0  # the pair is kept


def test_a_weight_beside_its_weight_norm_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "source", torch.float32)
    rewrite(source / WEIGHTS, lambda content: content.update({"moved.0.weight": torch.ones(4, 3, 5)}))
    for to in ("mlx", "published"):
        assert convert(source, tmp_path / "out", "--to", to) == 5
        error = capsys.readouterr().err
        assert "tensor moved.0.weight is there beside moved.0.weight_g, a part of its weight norm" in error
