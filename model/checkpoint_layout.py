"""`CheckpointLayout`: which files a checkpoint has, as one publisher lays them out. Imports no torch.

An index may split the weights of a checkpoint into shards.
"""

from __future__ import annotations

import copy
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self

from voxport.bundle.errors import CheckpointError, UsageError
from voxport.model.config import Config, parse_params
from voxport.model.download import unfinished
from voxport.model.foreign import ADAPTER_CONFIG

if TYPE_CHECKING:
    import torch

    from voxport.bundle.json_types import Json

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".index.json"  # behind the name of a weight file that is split; names its shards
RANDOM_WEIGHTS = "random_weights"  # key of the metadata in weight files that voxport wrote
WORD = r"(\w+)"
# Parts of names that training adds: DDP, torch.compile, FSDP, activation checkpointing, and peft.
WRAPPER = re.compile(
    r"\b(?:module|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_model\.model)\."
)


class Renames:
    """Two sets of names of the same tensors."""

    def __init__(self, pairs: tuple[tuple[str, str], ...]):
        """`pairs` are prefixes of names, published and other ones. `*` is a number or a word. The first pair
        that fits decides. A name that no pair fits is the same in both.
        """
        self._patterns = [(*_rule(first, second), *_rule(second, first)) for first, second in pairs]

    def other(self, published: str) -> str:
        """The other name of a tensor."""
        for pattern, template, _, _ in self._patterns:
            if pattern.match(published):
                return pattern.sub(template, published)
        return published

    def published(self, name: str) -> str:
        """The published name of a tensor with another name, and of a published name itself."""
        for pattern, _, back, template in self._patterns:
            if pattern.match(name):
                return name
            if back.match(name):
                return back.sub(template, name)
        return name


def _rule(source: str, target: str) -> tuple[re.Pattern[str], str]:
    """A pattern for names that begin with `source`, and the replacement of its match."""
    pattern = WORD.join(map(re.escape, source.split("*")))
    template, *rest = target.split("*")
    for group, text in enumerate(rest, 1):
        template += rf"\g<{group}>{text}"
    return re.compile(f"^{pattern}"), template


@dataclass(frozen=True)
class WeightFile:
    """A safetensors file. `prefix` precedes its tensor names, if names of several files would collide.

    A layout whose names or values differ from the published ones has a subclass.
    """

    path: Path
    prefix: str = ""

    def published(self, name: str) -> str:
        """The published name of a tensor in the file. The names of wrappers of training are left out."""
        return self.prefix + WRAPPER.sub("", name)

    def restored(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The published values of a tensor by its name in the file."""
        return tensor

    def written(self, published: str) -> str:
        """The name that a tensor has in the file."""
        return published

    def converted(self, published: str, tensor: torch.Tensor) -> torch.Tensor:
        """The values that a published tensor has in the file."""
        return tensor


class CheckpointLayout(ABC, Generic[Config]):
    """The files of a checkpoint in one layout. A family has one for each publisher and tool that writes it.

    `marker` describes what `detect` looks for. `has_tokenizer` and `has_voices` say whether the layout has
    such files; export warns if a checkpoint lacks them. `folders` have further files, below its folder.
    `chosen` are the files of weights to read, if the caller has named any. `adapter` is the folder of an
    adapter to merge.
    """

    config_class: type[Config]
    marker: str
    folders: tuple[str, ...] = ()
    chosen: tuple[Path, ...] = ()
    adapter: Path | None = None
    has_tokenizer: bool = False
    has_voices: bool = False

    @abstractmethod
    def detect(self, folder: Path) -> bool:
        """Whether `folder` is a checkpoint of the family in this layout.

        Raises ConfigError if a file of the layout is damaged.
        """

    def published_documents(self, folder: Path) -> dict[str, Json]:
        """Contents of the published configuration files that `folder` has in another form, by name."""
        return {}

    @abstractmethod
    def config_files(self, folder: Path) -> list[str]:
        """Paths of the configuration files, below `folder`."""

    @abstractmethod
    def load_config(self, folder: Path) -> Config:
        """The checked configuration. Raises CheckpointNotFound or ConfigError."""

    def parse_config(self, content: Any, source: str) -> Config:  # Any: parsed JSON, not yet checked
        """The configuration. `source` names the file. Raises ConfigError that names the key."""
        return parse_params(self.config_class, content, source)

    @abstractmethod
    def single_files(self, folder: Path) -> list[WeightFile]:
        """The files of weights that are not split, in a fixed order, whether they exist or not."""

    def weight_files(self, folder: Path) -> list[WeightFile]:
        """The files of the weights, in a fixed order, whether they exist or not. An index may name shards of
        one. Raises CheckpointError.
        """
        files = self.single_files(folder)
        return [replace(file, path=path) for file in files for path in self._paths(file.path)]

    def _paths(self, path: Path) -> list[Path]:
        return [each for each in self.chosen if each.parent == path.parent] or weight_paths(path)

    def choosing(self, folder: Path, names: Collection[str]) -> Self:
        """The layout of a folder whose weights of these names are read in place of the usual ones.

        A name of a shard stands for all shards. Raises UsageError on a name of no such file.
        """
        places = {file.path.parent.resolve(): file.path.parent for file in self.single_files(folder)}
        chosen: list[Path] = []
        for name in names:
            path = next((path for path in (folder / name, Path(name)) if path.is_file()), None)
            place = places.get(path.parent.resolve()) if path else None
            if not path or not place or path.suffix != SUFFIX:
                raise UsageError(f"weights {name}: expected a file {SUFFIX} of {folder}", field="weights")
            chosen += sorted(place.glob(re.sub(r"\d+(?=-of-)", "*", path.name)))
        other = copy.copy(self)
        other.chosen = tuple(dict.fromkeys(chosen))
        return other

    def replaces_published(self, folder: Path, weights: Collection[str]) -> bool:
        """Whether `folder`, or its files `weights`, are read in this layout and not as published."""
        return False

    def adapted(self, folder: Path, adapter: Path) -> Self:
        """The layout of a folder whose weights get the adapter of another one, or of the same.

        Raises UsageError if `adapter` has none, and CheckpointError if weights in this layout take none.
        """
        if not (adapter / ADAPTER_CONFIG).is_file():
            raise UsageError(f"adapter {adapter}: has no {ADAPTER_CONFIG} of peft", field="adapter")
        other = copy.copy(self)
        other.adapter = adapter
        return other

    def tokenizer_files(self, folder: Path) -> list[str]:
        """Paths of the tokenizer files that exist, below `folder`."""
        return []

    def voice_files(self, folder: Path) -> list[str]:
        """Paths of the voice files that exist, below `folder`. Raises CheckpointError on two of one voice."""
        return []

    def voices(self, folder: Path, config: Config) -> dict[str, torch.Tensor]:
        """Rows [N, dim] of each voice by name. `config` is the family's configuration.

        Raises CheckpointError.
        """
        rows: dict[str, torch.Tensor] = {}
        faults: list[str] = []
        for name in self.voice_files(folder):
            try:
                rows[Path(name).stem] = self.voice(folder / name, config)
            except CheckpointError as error:
                faults += error.faults
        if faults:
            raise CheckpointError(*faults)
        return rows

    def voice(self, path: Path, config: Config) -> torch.Tensor:
        """Rows [N, dim] of one voice. Raises CheckpointError."""
        raise NotImplementedError(f"{type(self).__name__} has voice files, and no method that reads one")

    def voice_names(self, config: Config) -> list[str]:
        """The voices that the configuration lists, whether their files exist or not."""
        return []

    def check_tokenizer(self, folder: Path, config: Config | None) -> None:
        """Raises IntegrityError if a tokenizer file is not complete, or does not fit the configuration, which
        may be missing.
        """
        for path in (folder / name for name in self.tokenizer_files(folder)):
            reason = unfinished(path)
            if not reason and path.suffix == ".json":
                reason = not_json(path)
            if reason:
                raise CheckpointError(f"{path}: {reason}")

    def source_files(self, folder: Path) -> list[str]:
        """Paths of every file that a bundle is made from, below `folder`; those that exist."""
        weights = [file.path.relative_to(folder).as_posix() for file in self.weight_files(folder)]
        others = self.tokenizer_files(folder) + self.voice_files(folder)
        names = self.config_files(folder) + weights + others
        return [name for name in dict.fromkeys(names) if (folder / name).is_file()]


class TransformersLayout(CheckpointLayout[Config]):
    """The layout of transformers, beside another published one."""

    @abstractmethod
    def written_file(self, config: Config) -> WeightFile:
        """The file of weights that a conversion writes, by its path below the folder."""

    @abstractmethod
    def documents(self, folder: Path, config: Config, dtype: str) -> dict[str, Json]:
        """Contents of the configuration files that a conversion of `folder` writes, by name. `dtype` is
        torch's name of the dtype of the weights. Raises UsageError if transformers has no such model.
        """


def not_json(path: Path) -> str | None:
    """Why a file is not readable as JSON, and what to do; None if it is."""
    try:
        json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # a number of 5000 digits is a bare ValueError
        return f"not readable as JSON: {error}; fetch it again"
    return None


def weight_paths(path: Path) -> list[Path]:
    """A weight file, or without it the shards that an index beside it names. Raises CheckpointError."""
    index = path.with_name(path.name + INDEX_SUFFIX)
    if path.exists() or not index.is_file():
        return [path]
    return [path.with_name(name) for name in _shards(index)]


def _shards(index: Path) -> list[str]:
    """Names of the files that an index of weights lists. Raises CheckpointError."""
    reason = unfinished(index) or not_json(index)
    if reason:
        raise CheckpointError(f"{index}: {reason}")
    content = json.loads(index.read_text(encoding="utf-8"))
    table = content.get("weight_map") if isinstance(content, dict) else None
    names = list(table.values()) if isinstance(table, dict) else []
    if not names or not all(isinstance(name, str) and name and name == Path(name).name for name in names):
        raise CheckpointError(
            f"{index}: expected `weight_map` from tensors to files beside it; fetch it again"
        )
    return sorted(set(names))
