"""What a model family brings: functions over configuration objects that are opaque to the caller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from model.verification_plan import VerificationPlan

Distribution = tuple[np.float32, np.float32]


@dataclass(frozen=True)
class Synthetic:
    """Checkpoints of random weights. `version` is that of the tiny one of seed 0, the embedded default: raise it when its bytes change.

    `params(size)` and `tekken(size)` are the contents of the two files, `vocab(size)` the entries of the second; `distribution(name,
    shape, config)` gives mean and deviation of a tensor's values, and `adjust(name, first, values, seed, config)` may change a block of
    its rows from `first` on, float32 [rows, width], in place. `write_beside(folder, size, seed)` makes what else belongs to a checkpoint,
    files that `beside(size)` names.
    """

    version: int
    sizes: tuple[str, ...]
    params: Callable[[str], dict[str, Any]]
    tekken: Callable[[str], dict[str, Any]]
    vocab: Callable[[str], int]
    distribution: Callable[[str, tuple[int, ...], Any], Distribution]
    adjust: Callable[[str, int, np.ndarray, int, Any], None] = lambda name, first, values, seed, config: None
    write_beside: Callable[[Path, str, int], None] = lambda folder, size, seed: None
    beside: Callable[[str], list[str]] = lambda size: []


@dataclass(frozen=True)
class Family:
    """All that export needs to know of a family.

    `parse_config(params, source)` and `load_config(folder)` check a configuration; `build_root(config)` gives its meta-device
    module, `root(config, checkpoint)` that of a checkpoint, checked; `components(root, config, switches, cache_length, layout,
    only)` describes what is exported. `high_precision` and `constant` are shell patterns of module paths: kept as floats unless a
    rule says otherwise, and multiplied at export. `verification` names the components that verification calls in
    sequence. `parts` says where a parameter belongs, by the beginning of its name; `summary` rows of what a configuration says.
    `calls(constants, switches)` is the order of calls, for whoever writes a runner.
    """

    name: str
    title: str
    licence: str
    parse_config: Callable[..., Any]
    load_config: Callable[[Path], Any]
    build_root: Callable[..., Any]
    root: Callable[..., Any]
    components: Callable[..., list]
    weights_of_graph: dict[str, tuple[str, ...]]
    constants: Callable[[Any, Any], dict[str, Any]]
    switches: Any
    longest_cache: Callable[[Any], int]
    default_cache: Callable[[Any], int]
    verification: VerificationPlan
    parts: dict[str, str]
    summary: Callable[[Any], list[tuple[str, str]]]
    calls: Callable[[dict[str, Any], dict[str, Any]], str]
    synthetic: Synthetic
    voices: Callable[[Path, Any], dict[str, Any]] | None = None
    high_precision: tuple[str, ...] = ()
    constant: tuple[str, ...] = ()

    def is_constant(self, path: str) -> bool:
        """Whether the module at `path` becomes constants at export, so that no recipe may touch it."""
        return any(fnmatchcase(path, pattern) for pattern in self.constant)
