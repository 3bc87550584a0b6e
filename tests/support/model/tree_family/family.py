"""Holder and hooks of the family. What it does not need is that of the toy family of the exercises."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from exercises.toy_model.family import FAMILY as TOY
from support.model.tree_family.format import CONFIG, FORMAT
from torch import nn
from torch.nn.utils import weight_norm
from torch.nn.utils.parametrizations import weight_norm as parametrized_weight_norm
from voxport.model.mlx.layout import MlxModel

Node = Any  # JSON: a list of nodes, or a module as [kind, sizes...]
CONVOLUTIONS = {
    "conv1d": nn.Conv1d,
    "conv2d": nn.Conv2d,
    "transposed1d": nn.ConvTranspose1d,
    "transposed2d": nn.ConvTranspose2d,
}
WEIGHT_NORMS = {"": lambda module: module, "g, v": weight_norm, "originals": parametrized_weight_norm}


def built(node: Node) -> nn.Module:
    kind = node[0] if node else None
    if not isinstance(kind, str):
        return nn.ModuleList(built(child) for child in node)
    if kind == "linear":
        return nn.Linear(*node[1:])
    if kind == "table":
        return nn.Embedding(*node[1:])
    if kind == "lstm":
        return nn.LSTM(*node[1:], bidirectional=True)
    if kind == "lstm of one direction":
        return nn.LSTM(*node[1:])
    inputs, outputs, size, norm = node[1:]
    module: nn.Module = WEIGHT_NORMS[norm](CONVOLUTIONS[kind](inputs, outputs, size))
    return module


class Tree(nn.Module):
    """`moved` has the convolutions that mlx-audio stores reordered, `kept` those stored as published."""

    def __init__(self, config: dict[str, Node]) -> None:
        super().__init__()
        self.moved, self.kept = built(config["moved"]), built(config["kept"])


def load_config(folder: Path) -> dict[str, Node]:
    content: dict[str, Node] = json.loads((folder / CONFIG).read_text())
    return content


FAMILY = replace(
    TOY,
    name="tree",
    title="Tree",
    format=FORMAT,
    parse_config=lambda content, source: content,
    load_config=load_config,
    weights=Tree,
    mlx=MlxModel(
        model_type="tree",
        config=lambda folder: {},
        renames=(("moved.*.", "model.blocks.*."), ("kept.", "codec.")),
        reordered=("moved.",),
        copied=(CONFIG,),
    ),
)
