"""`CheckpointFormat`: which files a published checkpoint has. A hook of the family; imports no torch.

`MistralFormat` has `params.json`, `consolidated.safetensors` and `tekken.json` in one folder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PARAMS = "params.json"
WEIGHTS = "consolidated.safetensors"
TOKENIZER = "tekken.json"


@dataclass(frozen=True)
class WeightFile:
    """A safetensors file. `prefix` precedes its tensor names, where names of several files would collide."""

    path: Path
    prefix: str = ""


class CheckpointFormat(ABC):
    """The files of a family's checkpoints.

    `marker` describes what `detect` looks for. `has_tokenizer` and `has_voices` say whether the format has
    such files; export warns where a checkpoint lacks them.
    """

    marker: str
    has_tokenizer: bool = False
    has_voices: bool = False

    @abstractmethod
    def detect(self, folder: Path) -> bool:
        """Whether `folder` is a checkpoint of the family.

        Raises ConfigError where a file of the format is damaged.
        """

    @abstractmethod
    def config_files(self, folder: Path) -> list[str]:
        """Paths of the configuration files, below `folder`."""

    @abstractmethod
    def weight_files(self, folder: Path) -> list[WeightFile]:
        """The files of the weights, in a fixed order, whether they exist or not."""

    def tokenizer_files(self, folder: Path) -> list[str]:
        """Paths of the tokenizer files that exist, below `folder`."""
        return []

    def voice_files(self, folder: Path) -> list[str]:
        """Paths of the voice files that exist, below `folder`."""
        return []

    def voices(self, folder: Path, config: Any) -> dict[str, torch.Tensor]:
        """Rows [N, dim] of each voice by name.

        Raises CheckpointError. `config` is the family's configuration.
        """
        return {}

    def source_files(self, folder: Path) -> list[str]:
        """Paths of every file that a bundle is made from, below `folder`; those that exist."""
        weights = [file.path.relative_to(folder).as_posix() for file in self.weight_files(folder)]
        others = self.tokenizer_files(folder) + self.voice_files(folder)
        names = self.config_files(folder) + weights + others
        return [name for name in dict.fromkeys(names) if (folder / name).is_file()]


class MistralFormat(CheckpointFormat):
    """A checkpoint is recognised by `section` of `multimodal` in params.json."""

    has_tokenizer = True

    def __init__(self, section: str):
        self._section = section
        self.marker = f"{PARAMS} with multimodal.{section}"

    def detect(self, folder: Path) -> bool:
        from model.config import read_params

        if not (folder / PARAMS).is_file():
            return False
        params = read_params(folder)
        multimodal = params.get("multimodal") if isinstance(params, dict) else None
        return isinstance(multimodal, dict) and self._section in multimodal

    def config_files(self, folder: Path) -> list[str]:
        return [PARAMS]

    def weight_files(self, folder: Path) -> list[WeightFile]:
        return [WeightFile(folder / WEIGHTS)]

    def tokenizer_files(self, folder: Path) -> list[str]:
        return [TOKENIZER] if (folder / TOKENIZER).is_file() else []
