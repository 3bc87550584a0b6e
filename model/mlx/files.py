"""Where the weights of a folder are: in the published files or in those of mlx-audio."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from bundle.errors import CheckpointError
from model.checkpoint_format import WeightFile, weight_paths
from model.family import Family


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


def check_one_place(folder: Path, family: Family) -> None:
    """mlx-audio's own conversion copies the published file beside the one that it writes.

    Repositories of the hub have a file of that name for PyTorch, which counts as another model's. Raises
    CheckpointError on weights in both places.
    """
    published = [file.path for file in family.format.weight_files(folder) if file.path.exists()]
    others = [file.path for file in _mlx_files(folder, family) if file.path not in published]
    for path in others:
        if published and path.exists() and _is_written_by_mlx(path):
            raise CheckpointError(
                f"{folder}: has weights twice: {published[0].name} as published, and {path.name} for MLX; "
                "remove those that are not meant"
            )


def _mlx_files(folder: Path, family: Family) -> list[WeightFile]:
    return [
        WeightFile(path, prefix)
        for prefix, name in family.mlx.weights
        for path in weight_paths(folder / name)
    ]


def _is_written_by_mlx(path: Path) -> bool:
    try:
        with safe_open(path, framework="numpy") as file:
            return (file.metadata() or {}).get("format") == "mlx"
    except (OSError, SafetensorError):
        return False
