"""Finished graphs of an export that is not finished: what a killed run leaves, and what of it the next one may use."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from bundle.bundle import FileEntry, file_entry
from bundle.files import write_whole
from export.targets.base import EntryPoint

RECORD = "parts.json"


class Part(BaseModel):
    """One lowered graph. `key` says what it was made from; hashes say that its files are still those that were made."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    key: str
    files: dict[str, FileEntry]
    entries: dict[str, EntryPoint]
    report: dict[str, float]

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files.values())


class Parts:
    """The lowered graphs in a folder, by name; files that no part vouches for are removed at the start."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._parts = _read(folder)
        sweep(folder)

    def find(self, graph: str, key: str) -> Part | None:
        """The part of this key, if every file of it is as it was written."""
        part = self._parts.get(graph)
        whole = (
            part is not None
            and part.key == key
            and all(_is(self._folder / name, entry) for name, entry in part.files.items())
        )
        return part if whole else None

    def make(
        self, graph: str, key: str, lower: Callable[[Path], tuple[dict[str, EntryPoint], dict[str, float]]]
    ) -> Part:
        """Lowers into a folder of its own, gives the files their names, and only then enters them."""
        self._forget(graph)
        beside = self._folder / f".{graph}"
        beside.mkdir()
        entries, report = lower(beside)
        names = [path.relative_to(beside).as_posix() for path in sorted(beside.rglob("*")) if path.is_file()]
        files = {name: file_entry(beside / name) for name in names}
        for path in list(beside.iterdir()):
            os.replace(path, self._folder / path.name)
        beside.rmdir()
        part = Part(key=key, files=files, entries=entries, report=report)
        self._enter({**self._parts, graph: part})
        return part

    def _forget(self, graph: str) -> None:
        if graph in self._parts:
            self._enter({name: part for name, part in self._parts.items() if name != graph})
            sweep(self._folder)

    def _enter(self, parts: dict[str, Part]) -> None:
        write_whole(
            self._folder / RECORD,
            json.dumps({name: part.model_dump() for name, part in parts.items()}, indent=1).encode(),
        )
        self._parts = parts


def key_of(identity: dict[str, Any]) -> str:
    """A hash of all that decides an artifact."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def sweep(folder: Path) -> bool:
    """Removes what is no part's. Whether any part is left."""
    kept = {name for part in _read(folder).values() for name in part.files}
    if kept:
        kept.add(RECORD)
    for path in sorted(folder.rglob("*"), reverse=True):  # the deepest first
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif name not in kept:
            path.unlink()
    return bool(kept)


def _read(folder: Path) -> dict[str, Part]:
    """None where there is no record, or none that can be read."""
    try:
        return {
            name: Part.model_validate(part)
            for name, part in json.loads((folder / RECORD).read_bytes()).items()
        }
    except (OSError, ValueError, AttributeError, ValidationError):
        return {}


def _is(path: Path, entry: FileEntry) -> bool:
    return path.is_file() and path.stat().st_size == entry.size and file_entry(path) == entry
