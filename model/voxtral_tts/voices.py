"""Voices of a Voxtral-TTS checkpoint: rows that take the place of [AUDIO] placeholders in a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from bundle.errors import CheckpointError

FOLDER = "voice_embedding"
REMEDY = "fetch the file again"


def load_voices(checkpoint: Path, dim: int) -> dict[str, torch.Tensor]:
    """Rows [N, dim] of every voice, as stored, by name in alphabetical order; nothing where the checkpoint has no voices.

    Files are read with weights-only loading: nothing in them is executed. Raises CheckpointError that names the file.
    """
    return {path.stem: _load_voice(path, dim) for path in sorted((checkpoint / FOLDER).glob("*.pt"))}


def _load_voice(path: Path, dim: int) -> torch.Tensor:
    expected = f"expected one float tensor [N, {dim}]"
    try:
        rows = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of many kinds, and all of them mean that the file is damaged or not a tensor
        raise CheckpointError(
            f"{path}: not readable as a tensor ({_reason(error)}), {expected}; {REMEDY}"
        ) from None
    if not _is_plain(rows):
        raise CheckpointError(f"{path}: holds {_what(rows)}, {expected}; {REMEDY}")
    if rows.dim() != 2 or rows.shape[0] < 1 or rows.shape[1] != dim:
        raise CheckpointError(f"{path}: holds a tensor of shape {list(rows.shape)}, {expected}; {REMEDY}")
    if not rows.isfinite().all():
        raise CheckpointError(f"{path}: holds values that are not finite, {expected}; {REMEDY}")
    return rows.detach()


def _is_plain(rows: Any) -> bool:
    return isinstance(rows, torch.Tensor) and rows.layout is torch.strided and rows.is_floating_point()


def _what(rows: Any) -> str:
    return f"a tensor of {rows.dtype}" if isinstance(rows, torch.Tensor) else f"a {type(rows).__name__}"


def _reason(error: Exception) -> str:
    """The first line: what follows in torch's messages is advice to its own users."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")[:120]
