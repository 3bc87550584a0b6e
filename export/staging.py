"""A hidden folder that gets its name when it is complete, and is removed when anything fails.

A run that is interrupted or killed leaves it with the finished graphs, which the next run may reuse. So does
a run whose artifacts do not match eager, and one that fills the disk.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from bundle.errors import ExportError, UsageError, VerificationError
from bundle.files import files_below, write_whole
from bundle.interruption import uninterrupted
from bundle.manifest import FileEntry, Record, WeightError, file_entry

RECORD, REPORT = "resume.json", "verify.json"
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def staging(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that replaces it at the end.

    It may hold finished artifacts of an earlier run. After a VerificationError it also keeps the report.

    Raises ExportError where the disk is full or closed, UsageError where another process is writing `out`.
    """
    out = Path(os.path.realpath(out))  # where a link leads; `.` has no name to be renamed by
    folder = out.parent / f".{out.name}.partial"
    for hidden in (folder, _old(out)):
        if hidden.is_symlink():  # what it leads to would be emptied
            raise UsageError(f"{hidden}: is a link, expected the folder of an export; remove it")
    new_parents = [parent for parent in (out.parent, *out.parent.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder, out):
            try:
                yield folder
            except BaseException as error:
                with uninterrupted():
                    _clean_up(folder, error)
                raise
            _replace(folder, out)
    except OSError as error:
        if error.errno in FULL:
            raise ExportError(
                f"{out.parent}: no space left on the disk; free some or use another output folder"
            ) from None
        raise ExportError(f"{error.filename or out}: {error.strerror or error}") from None
    finally:
        with uninterrupted():
            for parent in new_parents:  # the deepest first; full ones stay
                with suppress(OSError):
                    parent.rmdir()


def _clean_up(folder: Path, error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, OSError) and error.errno in FULL):
        if not remove_unrecorded(folder):
            folder.rmdir()
    elif isinstance(error, VerificationError):
        remove_unrecorded(folder, REPORT)
    else:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path, out: Path) -> Iterator[None]:
    """Locks the folder itself, so the lock ends with its process."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not (folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat())):
            raise BlockingIOError
        yield
    except BlockingIOError:
        raise UsageError(
            f"{out}: another export is writing it; wait for that one or use another output folder"
        ) from None
    finally:
        os.close(descriptor)


def _old(out: Path) -> Path:
    """Where a folder is until its successor is in its place."""
    return out.parent / f".{out.name}.old"


def _replace(folder: Path, out: Path) -> None:
    """From here on the hidden name may be another process's."""
    if not (out.exists() or out.is_symlink()):
        os.replace(folder, out)
        return
    old = _old(out)
    shutil.rmtree(old, ignore_errors=True)
    os.replace(out, old)
    try:
        os.replace(folder, out)
    except OSError:
        os.replace(old, out)
        raise
    shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()


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
        _move(temporary, self._folder)
        self._graphs[name] = FinishedGraph(key=key, files=files, weight_error=weight_error)
        self._record()
        return self._graphs[name]

    def _record(self) -> None:
        content = json.dumps({name: graph.model_dump() for name, graph in self._graphs.items()}, indent=1)
        write_whole(self._folder / RECORD, content.encode())


def _move(source: Path, target: Path) -> None:
    """Moves what is in `source` into `target`, where folders of the same name may be."""
    for path in list(source.iterdir()):
        if path.is_dir() and (target / path.name).is_dir():
            _move(path, target / path.name)
        else:
            os.replace(path, target / path.name)
    source.rmdir()


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
