"""The table of model families. What a family brings is imported when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.errors import ConfigError, UnknownFamily
from model.config import PARAMS, read_params

if TYPE_CHECKING:
    from model.family import Family


@dataclass(frozen=True)
class Row:
    """`section` of `multimodal` in params.json is what a checkpoint of the family is known by."""

    title: str
    section: str


FAMILIES = {
    "voxtral_tts": Row("Voxtral-TTS", "audio_model_args"),
    "voxtral_realtime": Row("Voxtral-Realtime", "whisper_model_args"),
}
DEFAULT = "voxtral_tts"


def find_family(name: str) -> str:
    """`voxtral-realtime` -> the family's key. Raises UnknownFamily (usage) that lists what there is."""
    key = name.replace("-", "_")
    if key not in FAMILIES:
        raise UnknownFamily(f"model {name!r} is unknown; there are {', '.join(map(public_name, FAMILIES))}")
    return key


def public_name(key: str) -> str:
    return key.replace("_", "-")


def family_of(checkpoint: Path) -> str:
    """The family of a checkpoint, from its params.json. Raises CheckpointNotFound or ConfigError."""
    params = read_params(checkpoint)
    multimodal = params.get("multimodal") if isinstance(params, dict) else None
    for key, row in FAMILIES.items():
        if isinstance(multimodal, dict) and row.section in multimodal:
            return key
    known = ", ".join(f"{row.section} ({row.title})" for row in FAMILIES.values())
    raise ConfigError(
        f"{checkpoint / PARAMS}: multimodal: describes no model that is known here; expected one of {known}"
    )


def open_family(key: str) -> Family:
    """Imports torch."""
    return import_module(f"model.{key}.family").FAMILY


def switches_of(key: str) -> Any:
    """The pydantic model of a family's switches; imports no torch."""
    return import_module(f"model.{key}.config").Switches
