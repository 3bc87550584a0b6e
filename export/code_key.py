"""Hashes of the project's code in place of its version: a change elsewhere leaves what was made valid."""

import hashlib
import inspect
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from voxport.export.targets.base import Target

ROOT = Path(__file__).resolve().parent.parent
# Code that decides the artifacts of every target, beside the folder of the target. The job of an export
# records what the rest decides: options, recipes, components, source files, versions of tools.
LOWERING = (
    "bundle/constants*",
    "bundle/manifest.py",
    "bundle/spec.py",
    "bundle/weight_blobs.py",
    "export/model.py",
    "export/resolve.py",
    "export/targets/*.py",
    "model",
    "quantize",
)
# Modules in these that decide no artifact: other commands, other ways to get a checkpoint, texts for people.
NOT_LOWERING = (
    "export/targets/__init__.py",
    "model/__main__.py",
    "model/download.py",
    "model/embedded.py",
    "model/foreign.py",
    "model/inspection.py",
    "model/mlx/*",
    "model/other_weights.py",
    "model/stored_weights.py",
    "model/synthetic/*",
    "model/*/sizes.py",
    "model/*/synthetic.py",
)


def code_key(target: Target) -> str:
    """Hash of the code that decides the artifacts of a target."""
    return lowering_key(Path(inspect.getfile(type(target))).resolve().parent)


@cache
def lowering_key(target: Path, root: Path = ROOT) -> str:
    """The hash for the target whose folder is `target`."""
    paths = [path for path in _modules(root, LOWERING) if not _matches(path, root, NOT_LOWERING)]
    return _digest([*paths, *sorted(target.rglob("*.py"))])


@cache
def source_key(*patterns: str) -> str:
    """Hash of all modules in the files and folders of the project that match a pattern."""
    return _digest(_modules(ROOT, patterns))


def _modules(root: Path, patterns: tuple[str, ...]) -> list[Path]:
    found = {path for pattern in patterns for path in root.glob(pattern)}
    return sorted(module for path in found for module in (path.rglob("*.py") if path.is_dir() else [path]))


def _matches(path: Path, root: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path.relative_to(root).as_posix(), pattern) for pattern in patterns)


def _digest(paths: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]
