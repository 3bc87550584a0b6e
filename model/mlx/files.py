"""Where the weights of a folder are: in the published files or in those of mlx-audio."""

from pathlib import Path

from voxport.model.checkpoint_format import WeightFile, weight_paths
from voxport.model.family import Family


def is_mlx_folder(folder: Path, family: Family) -> bool:
    """Whether the weights of `folder` are in mlx-audio's files. Qwen3-TTS has one set of files for both."""
    if any(file.path.exists() for file in family.format.weight_files(folder)):
        return False
    return any(file.path.exists() for file in _mlx_files(folder, family))


def weight_files(folder: Path, family: Family) -> list[WeightFile]:
    """The files of the weights of `folder`, in mlx-audio's or the published place."""
    if is_mlx_folder(folder, family):
        return _mlx_files(folder, family)
    return family.format.weight_files(folder)


def _mlx_files(folder: Path, family: Family) -> list[WeightFile]:
    return [
        WeightFile(path, prefix)
        for prefix, name in family.mlx.weights
        for path in weight_paths(folder / name)
    ]
