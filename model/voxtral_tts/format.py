"""Files of a Voxtral-TTS checkpoint: Mistral's format, and a folder of voices. Imports torch when needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bundle.errors import CheckpointError
from model.checkpoint_format import MistralFormat
from model.download import unfinished

if TYPE_CHECKING:
    import torch

    from model.voxtral_tts.config import VoxtralTTSConfig

VOICES = "voice_embedding"
REMEDY = "fetch the file again"


class VoxtralTTSFormat(MistralFormat):
    """`voice_embedding/NAME.pt` holds the rows of a voice."""

    has_voices = True

    def voice_files(self, folder: Path) -> list[str]:
        return sorted(f"{VOICES}/{path.name}" for path in (folder / VOICES).glob("*.pt"))

    def voice(self, path: Path, config: VoxtralTTSConfig) -> torch.Tensor:
        return _load_voice(path, config.dim)

    def voice_names(self, config: VoxtralTTSConfig) -> list[str]:
        return sorted(config.codec.voice)


def _load_voice(path: Path, dim: int) -> torch.Tensor:
    """Rows [N, dim] of a voice, as stored. Raises CheckpointError with the file's path.

    Weights-only loading executes nothing in the file.
    """
    import torch

    if reason := unfinished(path):
        raise CheckpointError(f"{path}: {reason}")
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


FORMAT = VoxtralTTSFormat("audio_model_args")
