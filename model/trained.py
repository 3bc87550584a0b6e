"""Checkpoints of trained small models, which a checkout of the project holds."""

from pathlib import Path

from bundle.errors import UsageError

FOLDER = Path(__file__).resolve().parent.parent / "artifacts" / "checkpoints"
NAMES = {"voxtral_realtime": "voxtral-realtime-tiny"}  # by family


def trained_checkpoint(family: str) -> Path:
    """The folder of a family's trained checkpoint. Raises UsageError where it is not installed."""
    folder = FOLDER / NAMES[family]
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: the trained model is part of a checkout of the project, which this is not; "
            "clone the repository, or give a bundle or checkpoint of your own"
        )
    return folder
