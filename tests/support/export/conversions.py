"""Conversion of golden checkpoints by the command, and damage to converted folders."""

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support.paths import GOLDEN

from voxport.export.__main__ import main as export
from voxport.model.checkpoint import Checkpoint
from voxport.model.families import family_of, open_family
from voxport.model.mlx.tensor_layouts import Stored, stored_tensors

FOLDERS = {
    "voxtral_tts": GOLDEN / "voxtral_tts" / "checkpoint",
    "voxtral_realtime": GOLDEN / "voxtral_realtime" / "checkpoint",
    "qwen3_tts": GOLDEN / "qwen3_tts" / "base",
}
WEIGHTS = "model.safetensors"
Tensors = dict[str, torch.Tensor]


def convert(source: Path, out: Path, *options: str) -> int:
    return export(["convert", str(source), str(out), *options])


def tensors(folder: Path) -> Tensors:
    """All tensors by published name and prefix."""
    family = open_family(family_of(folder))
    checkpoint = Checkpoint(family.layout.weight_files(folder))
    return {name: checkpoint.tensor(name) for name in checkpoint.names}


def assert_equal(found: Tensors, expected: Tensors) -> None:
    """To the bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def rewrite(path: Path, change: Callable[[Tensors], object], metadata: dict[str, str] | None = None) -> None:
    """Changes the tensors of a file in place."""
    content = load_file(path)
    with safe_open(path, framework="pt") as file:
        kept = file.metadata()
    change(content)
    save_file({name: tensor.contiguous() for name, tensor in content.items()}, path, metadata or kept)


def change_weights(
    folder: Path,
    change: Callable[[str, Stored, torch.Tensor], torch.Tensor],
    metadata: dict[str, str] | None = None,
) -> None:
    """Replaces each tensor of a published folder by `change(published name, how it is stored, tensor)`."""
    family = open_family(family_of(folder))
    stored = stored_tensors(family.build_root(family.layout.load_config(folder)))
    for file in family.layout.weight_files(folder):

        def apply(content: Tensors, prefix: str = file.prefix) -> None:
            for name in sorted(content):
                if prefix + name in stored:
                    content[name] = change(prefix + name, stored[prefix + name], content[name])

        rewrite(file.path, apply, metadata)
