"""The checkpoints that are used if a command is given none.

A checkout of the project holds trained small models. Elsewhere, and for a family without one, the weights are
random.
"""

import logging
from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.model.families import DEFAULT, public_name

FOLDER = Path(__file__).resolve().parent.parent / "artifacts" / "checkpoints"  # has the trained models
log = logging.getLogger(__name__)


def embedded_name(family: str) -> str:
    """Name of a family's embedded checkpoint."""
    return f"{public_name(family)}-tiny"


def embedded_default(family: str = DEFAULT) -> Path:
    """The folder of a family's trained checkpoint, or of the one with random weights."""
    folder = FOLDER / embedded_name(family)
    if folder.is_dir():
        return folder
    if not FOLDER.is_dir():
        log.warning(
            "%s: not found; trained models are only in a clone of the repository. "
            "Random weights are used: speech is noise, and text means nothing",
            FOLDER,
        )
    from voxport.model.synthetic.checkpoint import random_checkpoint  # imports torch

    return random_checkpoint(family)


def trained_checkpoint(family: str) -> Path:
    """The folder of a family's trained checkpoint. Raises UsageError if it is not installed."""
    folder = FOLDER / embedded_name(family)
    if not folder.is_dir():
        raise UsageError(
            f"{folder}: not found; the trained model is only in a clone of the repository; "
            "give a bundle or checkpoint of your own"
        )
    return folder
