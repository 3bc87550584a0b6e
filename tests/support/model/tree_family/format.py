"""Files of the family: a configuration and one weight file."""

from __future__ import annotations

from pathlib import Path

from voxport.model.checkpoint_layout import CheckpointFormat, WeightFile

CONFIG, WEIGHTS = "tree.json", "tree.safetensors"


class TreeFormat(CheckpointFormat):
    marker = CONFIG

    def detect(self, folder: Path) -> bool:
        return (folder / CONFIG).is_file()

    def config_files(self, folder: Path) -> list[str]:
        return [CONFIG]

    def single_files(self, folder: Path) -> list[WeightFile]:
        return [WeightFile(folder / WEIGHTS)]


FORMAT = TreeFormat()
