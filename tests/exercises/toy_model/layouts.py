"""Layout of the toy family: a configuration, letters, and two weight files, one of them in a sub-folder."""

from __future__ import annotations

from pathlib import Path

from exercises.toy_model.config import ToyConfig, load_config

from voxport.model.checkpoint_layout import CheckpointLayout, WeightFile

LETTERS = "letters.txt"


class ToyLayout(CheckpointLayout[ToyConfig]):
    marker = "toy.json"
    has_tokenizer = True

    def detect(self, folder: Path) -> bool:
        return (folder / "toy.json").is_file()

    def config_files(self, folder: Path) -> list[str]:
        return ["toy.json"]

    def load_config(self, folder: Path) -> ToyConfig:
        return load_config(folder)

    def single_files(self, folder: Path) -> list[WeightFile]:
        return [
            WeightFile(folder / "model.safetensors"),
            WeightFile(folder / "head/model.safetensors", "head."),
        ]

    def tokenizer_files(self, folder: Path) -> list[str]:
        return [LETTERS] if (folder / LETTERS).is_file() else []


LAYOUTS = (ToyLayout(),)
