"""Holder and hooks of the family. What it does not need is that of the toy family of the exercises."""

from __future__ import annotations

from typing import Any

from exercises.toy_model.config import Options
from exercises.toy_model.family import FAMILY as TOY
from support.model.tree_family.layouts import LAYOUTS, TreeConfig
from torch import nn
from torch.nn.utils import weight_norm
from torch.nn.utils.parametrizations import weight_norm as parametrized_weight_norm

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import FamilyConstants
from voxport.model.family import Family
from voxport.model.graph import GraphSpec

Node = Any  # JSON: a list of nodes, or a module as [kind, sizes...]
CONVOLUTIONS = {
    "conv1d": nn.Conv1d,
    "transposed1d": nn.ConvTranspose1d,
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
    inputs, outputs, size, norm = node[1:]
    module: nn.Module = WEIGHT_NORMS[norm](CONVOLUTIONS[kind](inputs, outputs, size))
    return module


class Tree(nn.Module):
    """`moved` has the convolutions that mlx-audio stores reordered, `kept` those stored as published."""

    def __init__(self, config: TreeConfig) -> None:
        super().__init__()
        self.moved, self.kept = built(config.moved), built(config.kept)


Graph = GraphSpec[Tree, TreeConfig, Options]


class TreeFamily(Family[Tree, TreeConfig, Options]):
    """What it does not need is that of the toy family of the exercises."""

    name = "tree"
    title = "Tree"
    licence, task, languages = TOY.licence, TOY.task, TOY.languages
    options = Options
    layouts = LAYOUTS
    verification, parameter_groups = TOY.verification, TOY.parameter_groups

    def parse_config(self, content: Any, source: str) -> TreeConfig:
        return TreeConfig.model_validate(content)

    def size_config(self, size: str) -> Json:
        return {}

    def weights(self, config: TreeConfig) -> Tree:
        return Tree(config)

    def graphs(self, config: TreeConfig, options: Options) -> tuple[Graph, ...]:
        return ()

    def constants(self, config: TreeConfig, options: Options) -> FamilyConstants:
        return FamilyConstants()

    def longest_cache(self, config: TreeConfig) -> int:
        return 64

    def default_cache(self, config: TreeConfig, options: Options) -> int:
        return 64

    def summary(self, config: TreeConfig) -> list[tuple[str, str]]:
        return []

    def calls(self, config: TreeConfig, options: Options) -> str:
        return ""


FAMILY = TreeFamily()
