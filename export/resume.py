"""Finished graphs of an interrupted export, and which of them the next run may reuse."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from bundle.files import FileEntry, file_entry, files_below, write_whole
from bundle.manifest import WeightError
from bundle.record import Record

RECORD = "resume.json"


class FinishedGraph(Record):
    """One lowered graph: the key of what it was made from, and its files by hash."""

    key: str
    files: dict[str, FileEntry]
    weight_error: WeightError | None

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files.values())


class ResumeCache:
    """The lowered graphs in a folder by name. Files of no graph are removed when it opens."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._graphs = _read(folder)
        remove_unrecorded(folder)

    def find(self, name: str, key: str) -> FinishedGraph | None:
        """The graph if it has this key and every file of it is unchanged."""
        graph = self._graphs.get(name)
        if graph is None or graph.key != key:
            return None
        unchanged = all(_is_unchanged(self._folder / file, entry) for file, entry in graph.files.items())
        return graph if unchanged else None

    def make(self, name: str, key: str, lower: Callable[[Path], WeightError | None]) -> FinishedGraph:
        """Lowers into a folder of its own, moves the files to their place, and then records them."""
        self._forget(name)
        temporary = self._folder / f".{name}"
        temporary.mkdir()
        weight_error = lower(temporary)
        files = {file: file_entry(temporary / file) for file in files_below(temporary)}
        for path in list(temporary.iterdir()):
            os.replace(path, self._folder / path.name)
        temporary.rmdir()
        graph = FinishedGraph(key=key, files=files, weight_error=weight_error)
        self._record({**self._graphs, name: graph})
        return graph

    def _forget(self, name: str) -> None:
        if name in self._graphs:
            self._record({other: graph for other, graph in self._graphs.items() if other != name})
            remove_unrecorded(self._folder)

    def _record(self, graphs: dict[str, FinishedGraph]) -> None:
        content = json.dumps({name: graph.model_dump() for name, graph in graphs.items()}, indent=1)
        write_whole(self._folder / RECORD, content.encode())
        self._graphs = graphs


def remove_unrecorded(folder: Path) -> bool:
    """Removes files of no finished graph. Returns whether any finished graph remains."""
    kept = {name for graph in _read(folder).values() for name in graph.files}
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


def _read(folder: Path) -> dict[str, FinishedGraph]:
    """Empty if the record is missing or unreadable."""
    try:
        content = json.loads((folder / RECORD).read_bytes())
        return {name: FinishedGraph.model_validate(graph) for name, graph in content.items()}
    except (OSError, ValueError, AttributeError, ValidationError):
        return {}


def _is_unchanged(path: Path, entry: FileEntry) -> bool:
    return path.is_file() and path.stat().st_size == entry.size and file_entry(path) == entry
