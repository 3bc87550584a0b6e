"""Finished graphs in the folder of an export that did not end, which the next run reuses."""

import json
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from voxport.bundle.files import files_below, move_into, write_whole
from voxport.bundle.manifest import FileEntry, Record, WeightError, file_entry

RECORD = "resume.json"


class FinishedGraph(Record):
    """One lowered graph: the key of what it was made from, and its files by hash."""

    key: str
    files: dict[str, FileEntry]
    weight_error: WeightError | None


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
        paths = {self._folder / file: entry for file, entry in graph.files.items()}
        unchanged = all(path.is_file() and file_entry(path) == entry for path, entry in paths.items())
        return graph if unchanged else None

    def make(self, name: str, key: str, lower: Callable[[Path], WeightError | None]) -> FinishedGraph:
        """Lowers into a folder of its own, moves the files to their place, and then records them."""
        if self._graphs.pop(name, None):
            self._record()
            remove_unrecorded(self._folder)
        temporary = self._folder / f".{name}"
        temporary.mkdir()
        weight_error = lower(temporary)
        files = {file: file_entry(temporary / file) for file in files_below(temporary)}
        move_into(self._folder, temporary)
        self._graphs[name] = FinishedGraph(key=key, files=files, weight_error=weight_error)
        self._record()
        return self._graphs[name]

    def _record(self) -> None:
        content = json.dumps({name: graph.model_dump() for name, graph in self._graphs.items()}, indent=1)
        write_whole(self._folder / RECORD, content.encode())


def remove_unrecorded(folder: Path, *others: str) -> bool:
    """Removes files of no finished graph except `others`. Returns whether any finished graph remains."""
    kept = {name for graph in _read(folder).values() for name in graph.files}
    if kept:
        kept |= {RECORD, *others}
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
