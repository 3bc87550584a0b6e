"""Files of the toy family: a configuration, and two weight files, one of them in a sub-folder."""

from pathlib import Path

from model.checkpoint_format import CheckpointFormat, WeightFile


class ToyFormat(CheckpointFormat):
    marker = "toy.json"

    def detect(self, folder: Path) -> bool:
        return (folder / "toy.json").is_file()

    def config_files(self, folder: Path) -> list[str]:
        return ["toy.json"]

    def weight_files(self, folder: Path) -> list[WeightFile]:
        return [
            WeightFile(folder / "model.safetensors"),
            WeightFile(folder / "head/model.safetensors", "head."),
        ]


FORMAT = ToyFormat()
