"""Weights beside those that are read: the same ones under other names, or another model, which is refused.

Official repositories have two layouts of the same weights, and trainers save beside the weights of the base.
"""

import re
from collections.abc import Callable
from pathlib import Path

import torch

from voxport.bundle.errors import UsageError
from voxport.model.checkpoint import DTYPES, Checkpoint
from voxport.model.checkpoint_layout import SUFFIX, CheckpointLayout, WeightFile
from voxport.model.download import unfinished
from voxport.model.foreign import ADAPTER_WEIGHTS
from voxport.model.mlx.layout import MlxLayout

# transformers, and so the official package of Qwen3-TTS, never reads shards beside the whole file
SHARDED = re.compile(r"model\.safetensors model-\d+-of-\d+\.safetensors")
PICKLES = ("pytorch_model*.bin", "model*.bin", "model*.pt", "model*.pth", "consolidated*.pth", "*.gguf")


def check_other_weights(folder: Path, layout: CheckpointLayout, published: Callable[[str], str]) -> list[str]:
    """Notes about the names of weights in `folder`, and about weights that are not read. Those are compared
    with the others tensor by tensor.

    `published` gives the published name of a tensor of mlx-audio, and other names unchanged. Raises
    UsageError if weights differ and the caller has not named those to read.
    """
    files = layout.weight_files(folder)
    if not all(file.path.is_file() for file in files):
        return []
    read, checkpoint = [file.path for file in files], Checkpoint(files)
    name, parts = read[0].name, ", ".join(checkpoint.wrappers)
    notes = [f"{parts} in names of tensors: left out, a wrapper of training added it"] if parts else []
    if layout.chosen:
        return notes
    for place, prefix in {file.path.parent: file.prefix for file in files}.items():
        for path in sorted(set(place.glob(f"[!.]*{SUFFIX}")).difference(read, [place / ADAPTER_WEIGHTS])):
            if reason := unfinished(path):
                notes.append(f"{name}: read; {path.name} is not read, and not compared: {reason}")
                continue
            if SHARDED.fullmatch(f"{name} {path.name}") and not isinstance(layout, MlxLayout):
                notes.append(f"{name}: read, as by published software; the shard {path.name} is not")
                continue
            other = Checkpoint([WeightFile(path, prefix)])
            if difference := _difference(checkpoint, other, published):
                raise UsageError(
                    f"weights: {folder}: {name}, which published software reads, and {path.name} differ, "
                    f"first in {difference}; name the file to read, or move the other one away",
                    field="weights",
                )
            notes.append(f"{name}: read; {path.name} has no other values for its tensors")
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    return notes + [f"{name}: read; {pickle} is not read, and not compared" for pickle in pickles]


def _difference(checkpoint: Checkpoint, other: Checkpoint, published: Callable[[str], str]) -> str | None:
    """The name of the first tensor of `other` that has other values than the one of `checkpoint`.

    A tensor of an unknown name is compared with all of its shape, in any order of rows: layouts differ in
    names, and in the order of the rows of queries and keys. Tensors of unknown shapes have another use.
    """
    shapes, rows = set(map(checkpoint.shape, checkpoint.names)), set[bytes]()
    for name in sorted(other.names):
        same, shape = published(name), other.shape(name)
        is_known = same in checkpoint.names
        if not is_known and shape not in shapes:
            continue
        if not {other.dtype(name), checkpoint.dtype(same) if is_known else "F32"} <= DTYPES.keys():
            return name
        if is_known:
            pair = checkpoint.tensor(same).float(), other.tensor(name).float()
            if checkpoint.shape(same) != shape:  # a kernel of MLX has its axes in another order
                pair = pair[0].flatten().sort().values, pair[1].flatten().sort().values
            is_equal = torch.equal(*pair)
        else:
            floats = (each for each in checkpoint.names if checkpoint.dtype(each) in DTYPES)
            rows = rows or {_sum_of_rows(checkpoint.tensor(each)) for each in floats}
            is_equal = _sum_of_rows(other.tensor(name)) in rows
        if not is_equal:
            return name
    return None


def _sum_of_rows(tensor: torch.Tensor) -> bytes:
    """The shape, and the sum of the bits of the rows, which their order does not change."""
    rows = tensor.float().reshape(tensor.shape[0] if tensor.dim() else 1, -1)
    return repr(tensor.shape).encode() + rows.view(torch.int32).sum(0, dtype=torch.int64).numpy().tobytes()
