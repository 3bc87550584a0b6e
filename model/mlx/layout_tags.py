"""The layout of kernels that fit both layouts, as the metadata of their files says."""

from torch import nn

from voxport.bundle.errors import CheckpointError
from voxport.model.checkpoint import Checkpoint
from voxport.model.mlx.layouts import LAYOUT_KEY, LAYOUT_TAGS, MLX_AUDIO, Layout, stored_tensors
from voxport.model.mlx.model import MLX_WEIGHTS, MlxModel


def tagged_layout(checkpoint: Checkpoint, name: str, mlx: MlxModel) -> Layout:
    """The layout of the tensor `name` of the files. Raises CheckpointError where its file does not say it."""
    tag = checkpoint.metadata(name).get(LAYOUT_KEY)
    if tag not in LAYOUT_TAGS:
        where = f"{checkpoint.path(name)}: tensor {name}: shape {list(checkpoint.shape(name))}"
        raise CheckpointError(
            f"{where} fits the layouts of PyTorch and of MLX, and the file does not say which it has; "
            f"write {LAYOUT_KEY} pytorch, mlx or {MLX_AUDIO} into its metadata"
        )
    is_reordered = mlx.is_reordered(mlx.published(name))
    return "mlx" if tag == "mlx" or (tag == MLX_AUDIO and is_reordered) else "pytorch"


def check_layout_tags(root: nn.Module, checkpoint: Checkpoint, mlx: MlxModel) -> None:
    """Raises CheckpointError unless each kernel below `root` that fits both layouts has that of PyTorch.

    `checkpoint` has the published names and shapes.
    """
    faults = []
    for name in (name for name, stored in stored_tensors(root).items() if stored.is_ambiguous):
        try:
            if tagged_layout(checkpoint, name, mlx) == "mlx":
                faults.append(f"{checkpoint.path(name)}: tensor {name}: {MLX_WEIGHTS}")
        except CheckpointError as error:
            faults += error.faults
    if faults:
        raise CheckpointError(*faults)
