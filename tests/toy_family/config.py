"""Configuration and options of the toy family."""

import json
from pathlib import Path

from pydantic import BaseModel


class ToyConfig(BaseModel):
    toy_dim: int


class Options(BaseModel):
    loud: bool = False


def load_config(folder: Path) -> ToyConfig:
    return ToyConfig.model_validate(json.loads((folder / "toy.json").read_text()))
