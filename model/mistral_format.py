"""The checkpoint format of Mistral: `params.json`, `consolidated.safetensors`, `tekken.json` in one folder.

Imports no torch.
"""

import json
from pathlib import Path
from typing import Any

from bundle.errors import CheckpointNotFound, ConfigError
from model.checkpoint_format import CheckpointFormat, WeightFile
from model.download import unfinished

PARAMS = "params.json"
WEIGHTS = "consolidated.safetensors"
TOKENIZER = "tekken.json"


class MistralFormat(CheckpointFormat):
    """A checkpoint is recognised by `section` of `multimodal` in params.json."""

    has_tokenizer = True

    def __init__(self, section: str):
        self._section = section
        self.marker = f"{PARAMS} with multimodal.{section}"

    def detect(self, folder: Path) -> bool:
        if not (folder / PARAMS).is_file():
            return False
        params = read_params(folder)
        multimodal = params.get("multimodal") if isinstance(params, dict) else None
        return isinstance(multimodal, dict) and self._section in multimodal

    def config_files(self, folder: Path) -> list[str]:
        return [PARAMS]

    def single_files(self, folder: Path) -> list[WeightFile]:
        return [WeightFile(folder / WEIGHTS)]

    def tokenizer_files(self, folder: Path) -> list[str]:
        return [TOKENIZER] if (folder / TOKENIZER).is_file() else []


def read_params(checkpoint: Path) -> Any:
    """The parsed content of `checkpoint/params.json`. Raises CheckpointNotFound or ConfigError."""
    path = checkpoint / PARAMS
    if not path.is_file():
        raise CheckpointNotFound(
            f"{checkpoint} is no checkpoint: it has no {PARAMS}; give a folder as published"
        )
    if reason := unfinished(path):
        raise ConfigError(f"{path}: {reason}")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # a number of 5000 digits is a bare ValueError
        raise ConfigError(f"{path}: not readable as JSON: {error}") from None
