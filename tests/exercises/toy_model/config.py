"""Configuration and options of the toy family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from voxport.bundle.errors import ConfigError
from voxport.bundle.manifest import Record, first_fault


class ToyConfig(BaseModel):
    toy_dim: int = Field(ge=2)  # size of a row, and number of letters


class Options(Record):
    loud: bool = Field(False, description="doubles the samples")


def parse_config(content: Any, source: str) -> ToyConfig:
    """Any: parsed JSON. Raises ConfigError that names the key."""
    try:
        return ToyConfig.model_validate(content)
    except ValidationError as error:
        raise ConfigError(f"{source}: {first_fault(error)}") from None


def load_config(folder: Path) -> ToyConfig:
    path = folder / "toy.json"
    return parse_config(json.loads(path.read_text()), str(path))
