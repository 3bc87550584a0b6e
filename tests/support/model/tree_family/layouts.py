"""Layouts of the family: a configuration and one weight file, and the one of mlx-audio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from voxport.bundle.json_types import Json
from voxport.model.checkpoint_layout import CheckpointLayout, WeightFile
from voxport.model.mlx.layout import MlxLayout

CONFIG, WEIGHTS = "tree.json", "tree.safetensors"
Node = list[Any]  # JSON: a list of nodes, or a module as [kind, sizes...]


class TreeConfig(BaseModel):
    moved: Node
    kept: Node


class TreeLayout(CheckpointLayout[TreeConfig]):
    marker = CONFIG

    def detect(self, folder: Path) -> bool:
        return (folder / CONFIG).is_file()

    def config_files(self, folder: Path) -> list[str]:
        return [CONFIG]

    def load_config(self, folder: Path) -> TreeConfig:
        return TreeConfig.model_validate(json.loads((folder / CONFIG).read_text()))

    def single_files(self, folder: Path) -> list[WeightFile]:
        return [WeightFile(folder / WEIGHTS)]


class TreeMlx(MlxLayout[TreeConfig]):
    model_type = "tree"
    renames = (("moved.*.", "model.blocks.*."), ("kept.", "codec."))
    reordered = ("moved.",)
    copied = (CONFIG,)

    def mlx_config(self, folder: Path) -> Json:
        return {}


PUBLISHED = TreeLayout()
LAYOUTS = (PUBLISHED, TreeMlx(PUBLISHED))
