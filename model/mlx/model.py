"""`MlxModel`: how mlx-audio stores the checkpoints of a family. A hook of the family; imports no torch."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from voxport.bundle.errors import CheckpointError
from voxport.bundle.json_types import Json
from voxport.model.download import read_json

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
QUANTIZATION = "quantization"  # key of the configuration
QUANTIZATION_CONFIG = "quantization_config"  # read where that key is missing
MODEL_TYPE = "model_type"
OWN_KEYS = (MODEL_TYPE, QUANTIZATION, QUANTIZATION_CONFIG)  # of config.json, which no published file has
MLX_WEIGHTS = "the weights are those for MLX; first run: voxport convert FOLDER OUT --to published"
NUMBER = r"(\d+)"


@dataclass(frozen=True)
class MlxModel:
    """Names, layouts and configuration in a folder for mlx-audio.

    model_type: in `config.json`.
    config(folder): what `config.json` holds besides, of a published folder.
    renames: pairs of prefixes of tensor names, published and of mlx-audio. `*` is a number. The first pair
        that fits decides. A name that no pair fits is the same in both.
    reordered: prefixes of published names whose convolutions are written in MLX's order of axes. mlx-audio
        reorders the others when it loads them. All are read in either order.
    integers: patterns of published module paths that may be integers in mlx-audio.
    weights: paths of the weight files by prefix of the published names; the longest prefix decides.
    copied: names of files that both folders have.
    published_config: name of the published configuration that a folder of mlx-audio need not have, and
        `restored(content)`, which makes it from the content of `config.json`.
    sections: keys of `config.json` that hold an object, where they are there. `restored` relies on it.
    """

    model_type: str
    config: Callable[[Path], Json]
    renames: tuple[tuple[str, str], ...] = ()
    reordered: tuple[str, ...] = ()
    integers: tuple[str, ...] = ()
    weights: tuple[tuple[str, str], ...] = (("", WEIGHTS),)
    copied: tuple[str, ...] = ()
    published_config: str | None = None
    restored: Callable[[Json], Json] = dict
    sections: tuple[str, ...] = ()

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str, re.Pattern[str], str]]:
        return [(*_rule(first, second), *_rule(second, first)) for first, second in self.renames]

    def name(self, published: str) -> str:
        """mlx-audio's name of a tensor."""
        for pattern, template, _, _ in self._patterns:
            if pattern.match(published):
                return pattern.sub(template, published)
        return published

    def published(self, name: str) -> str:
        """The published name of a tensor of mlx-audio, and of a published name itself."""
        for pattern, _, back, template in self._patterns:
            if pattern.match(name):
                return name
            if back.match(name):
                return back.sub(template, name)
        return name

    def is_reordered(self, published: str) -> bool:
        return published.startswith(self.reordered) if self.reordered else False

    def takes_integers(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.integers)


def _rule(source: str, target: str) -> tuple[re.Pattern[str], str]:
    """A pattern for names that begin with `source`, and the replacement of its match."""
    pattern = NUMBER.join(map(re.escape, source.split("*")))
    template, *rest = target.split("*")
    for group, text in enumerate(rest, 1):
        template += rf"\g<{group}>{text}"
    return re.compile(f"^{pattern}"), template


NO_MLX = MlxModel("", lambda folder: {})  # of a family that mlx-audio does not have


def without_integers(content: Json) -> Json:
    """The content of `config.json` for floats."""
    return {key: value for key, value in content.items() if key not in (QUANTIZATION, QUANTIZATION_CONFIG)}


def read_mlx_config(folder: Path) -> Json:
    """The contents of `config.json`; empty without one. Raises IntegrityError."""
    path = folder / CONFIG
    content = read_json(folder, CONFIG) if path.is_file() else {}
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: holds a {type(content).__name__}, expected an object")
    return content


def quantization_of(folder: Path) -> Json:
    """`quantization` of `config.json`; empty without one. Raises CheckpointError."""
    content = read_mlx_config(folder)
    keys = (key for key in (QUANTIZATION, QUANTIZATION_CONFIG) if content.get(key) is not None)
    found = content.get(next(keys, ""), {})
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{folder / CONFIG}: {QUANTIZATION}: holds a {type(found).__name__}, expected an object; "
            "convert the model again"
        )
    return found
