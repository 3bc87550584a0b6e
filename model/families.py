"""The table of model families. A family's modules are imported when they are needed.

The table, `family_of`, `layouts_of` and `options_of` import no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.errors import (
    CheckpointError,
    CheckpointNotFound,
    ConfigError,
    UsageError,
    VoxportError,
)
from voxport.bundle.names import did_you_mean
from voxport.model.download import partial_downloads, snapshots, unfinished
from voxport.model.foreign import ADAPTER_CONFIG, adapter_named, format_of

if TYPE_CHECKING:
    from pydantic import BaseModel

    from voxport.model.checkpoint_layout import CheckpointLayout
    from voxport.model.family import Family


@dataclass(frozen=True)
class Row:
    """A family. `package` has the modules `layouts` (LAYOUTS), `config` (Options), `family` (FAMILY)."""

    title: str
    package: str


MAX_FOLDERS = 1000  # bounds the search below a folder that is no checkpoint

FAMILIES = {
    "voxtral_tts": Row("Voxtral-TTS", "voxport.model.voxtral_tts"),
    "voxtral_realtime": Row("Voxtral-Realtime", "voxport.model.voxtral_realtime"),
    "qwen3_tts": Row("Qwen3-TTS", "voxport.model.qwen3_tts"),
    "qwen3_asr": Row("Qwen3-ASR", "voxport.model.qwen3_asr"),
}
TEXT_TO_SPEECH, SPEECH_TO_TEXT = "text-to-speech", "automatic-speech-recognition"  # the hub's names of tasks
DEFAULT_OF_TASK = {TEXT_TO_SPEECH: "voxtral_tts", SPEECH_TO_TEXT: "voxtral_realtime"}
DEFAULT = DEFAULT_OF_TASK[TEXT_TO_SPEECH]
log = logging.getLogger(__name__)


def find_family(name: str) -> str:
    """`voxtral-realtime` -> the family's key. Raises UsageError with the known names."""
    key = name.lower().replace("-", "_")
    if key not in FAMILIES:
        names = [*map(public_name, FAMILIES)]
        close = did_you_mean(name, names)
        raise UsageError(f"model {name!r} is unknown; there are {', '.join(names)}{close}")
    return key


def public_name(key: str) -> str:
    """`voxtral_realtime` -> `voxtral-realtime`."""
    return key.replace("_", "-")


def family_of(checkpoint: Path) -> str:
    """Key of the family that has a layout like the folder. Raises CheckpointNotFound or ConfigError."""
    if not checkpoint.is_dir():
        raise CheckpointNotFound(f"{checkpoint}: {_reason_for_no_folder(checkpoint)}")
    if key := _detected(checkpoint):
        return key
    published = {key: layouts_of(key)[0] for key in FAMILIES}
    known = ", ".join(f"{published[key].marker} ({row.title})" for key, row in FAMILIES.items())
    names = dict.fromkeys(name for found in published.values() for name in found.config_files(checkpoint))
    present = [name for name in names if (checkpoint / name).is_file()]
    for name in present:
        if reason := unfinished(checkpoint / name):
            raise ConfigError(f"{checkpoint / name}: {reason}")
    if present:
        raise ConfigError(f"{checkpoint / present[0]}: describes no known model; expected one of {known}")
    below = sorted(path for path in islice(checkpoint.glob("*/"), MAX_FOLDERS) if _detected(path))
    if below:
        several = f"holds {len(below)} checkpoints" if len(below) > 1 else "holds a checkpoint"
        raise CheckpointNotFound(f"{checkpoint}: {several}; give the folder {' or '.join(map(str, below))}")
    raise _not_a_checkpoint(checkpoint, f"it has none of {', '.join(names)}")


def _detected(folder: Path) -> str | None:
    """Key of the family of a folder. Raises ConfigError if a file of the layout is damaged."""
    found = (key for key in FAMILIES if any(layout.detect(folder) for layout in layouts_of(key)))
    return next(found, None)


def _reason_for_no_folder(path: Path) -> str:
    """What else was given, and what to do."""
    if path.exists():
        return format_of(path) or f"a file; give its folder {path.parent}"
    named = f", or hf://{path} for a repository of the hub" if len(path.parts) == 2 else ""
    return f"no such folder; give the folder of a published checkpoint{named}"


def _not_a_checkpoint(folder: Path, reason: str) -> VoxportError:
    if inside := snapshots(folder):
        return CheckpointNotFound(f"{folder}: part of the hub's cache; give the folder {inside[-1]}")
    if partial := partial_downloads(folder):
        return CheckpointError(f"{folder}: {reason}, and a download has not ended ({partial[0]}); finish it")
    return CheckpointNotFound(f"{folder} is no checkpoint: {reason}; give a folder as published")


def layouts_of(key: str) -> tuple[CheckpointLayout, ...]:
    """The layouts of a family's checkpoints, the published one first."""
    found: tuple[CheckpointLayout, ...] = import_module(f"{FAMILIES[key].package}.layouts").LAYOUTS
    return found


def layout_of(
    folder: Path, weights: Collection[str] = (), adapter: Path | None = None, takes_mlx: bool = False
) -> tuple[str, CheckpointLayout]:
    """Key of the family of a checkpoint, and its layout. The layout reads the files `weights` if any are
    named, and merges `adapter`, or without one the adapter in the folder itself.

    Raises UsageError or IntegrityError, for example on adapters in folders below, and on weights for MLX
    unless `takes_mlx`.
    """
    from voxport.model.mlx.layout import MLX_WEIGHTS, MlxLayout

    key = family_of(folder)
    published, *others = layouts_of(key)
    layout = next((each for each in others if each.replaces_published(folder, weights)), published)
    layout = layout.choosing(folder, weights) if weights else layout
    if not adapter and (folder / ADAPTER_CONFIG).is_file():
        adapter = folder
        advice = f"move {ADAPTER_CONFIG} elsewhere to leave it out"
        log.warning("%s: the adapter in this folder is merged; %s", folder, advice)
    if not (weights or adapter) and (found := adapter_named(folder, ("", "*/"))):
        raise CheckpointError(f"{folder}: {found}")
    layout = layout.adapted(folder, adapter) if adapter else layout
    if isinstance(layout, MlxLayout) and not takes_mlx:
        raise CheckpointError(f"{folder}: {MLX_WEIGHTS}")
    return key, layout


def options_of(key: str) -> type[BaseModel]:
    """The class of a family's options."""
    found: type[BaseModel] = import_module(f"{FAMILIES[key].package}.config").Options
    return found


def open_family(key: str) -> Family:
    """The family. Imports torch. Raises ConfigError if its name is not the key of the row."""
    module = f"{FAMILIES[key].package}.family"
    found: Family = import_module(module).FAMILY
    if found.name != key:
        raise ConfigError(f"{module}: FAMILY.name is {found.name!r}, expected {key!r}, its key in FAMILIES")
    return found
