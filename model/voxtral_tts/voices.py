"""Voices of a Voxtral-TTS checkpoint: rows that replace the [AUDIO] placeholders of a prompt."""

from collections.abc import Iterable
from pathlib import Path

import torch

from bundle.errors import CheckpointError

REMEDY = "fetch the file again"


def load_voices(paths: Iterable[Path], dim: int) -> dict[str, torch.Tensor]:
    """Rows [N, dim] of the voice in each file, as stored, by the file's stem.

    Files are read with weights-only loading: nothing in them is executed. Raises CheckpointError with the
    file's path.
    """
    return {path.stem: _load_voice(path, dim) for path in paths}


def _load_voice(path: Path, dim: int) -> torch.Tensor:
    expected = f"expected one float tensor [N, {dim}]"
    try:
        rows = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds; each means that the file is damaged or not a tensor
        reason = _first_line(error)
        raise CheckpointError(f"{path}: not readable as a tensor ({reason}), {expected}; {REMEDY}") from None
    if not isinstance(rows, torch.Tensor):
        raise CheckpointError(f"{path}: holds a {type(rows).__name__}, {expected}; {REMEDY}")
    if rows.layout is not torch.strided or not rows.is_floating_point():
        raise CheckpointError(f"{path}: holds a tensor of {rows.dtype}, {rows.layout}, {expected}; {REMEDY}")
    if rows.dim() != 2 or rows.shape[0] < 1 or rows.shape[1] != dim:
        raise CheckpointError(f"{path}: holds a tensor of shape {list(rows.shape)}, {expected}; {REMEDY}")
    if not rows.isfinite().all():
        raise CheckpointError(f"{path}: holds values that are not finite, {expected}; {REMEDY}")
    return rows.detach()


def _first_line(error: Exception) -> str:
    """The first line of a message: the rest of torch's messages is advice to its own users."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")[:120]
