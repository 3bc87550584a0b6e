"""The hidden folder in which an export is written, and the finished graphs that the next run reuses.

The hidden folder is beside the output folder, and gets its name when it is complete. If the output folder
must keep its place, the hidden folder is in it, and its files are moved. Files in the output folder that are
not of a bundle are never removed. The hidden folder is removed when anything fails. Finished graphs stay if a
run is interrupted or killed, if the disk is full, or if artifacts do not match eager.
"""

import errno
import fcntl
import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import count
from pathlib import Path, PurePosixPath

from pydantic import ValidationError

from voxport.bundle.errors import ExportError, UsageError, VerificationError
from voxport.bundle.files import check_utf8, files_below, is_fixed, move_into, reason_of, write_whole
from voxport.bundle.folder import could_be_read, is_plain_path, unlisted
from voxport.bundle.manifest import (
    MANIFEST,
    README,
    REPORT,
    VECTORS,
    FileEntry,
    Record,
    WeightError,
    file_entry,
)

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Ends of names of hidden folders, whose content is of an export alone.
PARTIAL, OLD = ".voxport-partial", ".voxport-old"
MAX_NAMED = 5
SIGNALS = (signal.SIGINT, signal.SIGTERM)
RECORD = "resume.json"
log = logging.getLogger(__name__)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """SIGINT and SIGTERM are ignored, for short work that must be complete."""
    if threading.current_thread() is not threading.main_thread():  # signals never interrupt it
        yield
        return
    before = [signal.signal(each, signal.SIG_IGN) for each in SIGNALS]
    try:
        yield
    finally:
        for each, handler in zip(SIGNALS, before, strict=True):
            signal.signal(each, handler)


@contextmanager
def staging(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that replaces it at the end.

    It may hold finished artifacts of an earlier run. After a VerificationError it also keeps the report.

    Raises ExportError if the disk is full or closed, UsageError if another process is writing `out`.
    """
    out = Path(os.path.realpath(out))  # where a link leads; `.` has no name to be renamed by
    folder = out / PARTIAL if is_fixed(out) else out.parent / f".{out.name}{PARTIAL}"
    for hidden in (folder, _old(out)):
        if hidden.is_symlink():  # what it leads to would be emptied
            raise UsageError(f"{hidden}: is a link, expected the folder of an export; remove it")
    new_parents = [parent for parent in (out.parent, *out.parent.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        other = f"{out}: another export is writing it; wait for that one or use another output folder"
        with locked(folder, other):
            with uninterrupted():
                _recover(out)
            try:
                yield folder
            except BaseException as error:
                with uninterrupted():
                    _clean_up(folder, error)
                raise
            with uninterrupted():
                _place(folder, out)
    except OSError as error:
        reason = reason_of(error) if error.errno in DISK_FULL else error.strerror or error
        raise ExportError(f"{error.filename or out.parent}: {reason}") from None
    finally:
        with uninterrupted():
            for parent in new_parents:  # the deepest first; full ones stay
                with suppress(OSError):
                    parent.rmdir()


def _clean_up(folder: Path, error: BaseException) -> None:
    if isinstance(error, KeyboardInterrupt) or (isinstance(error, OSError) and error.errno in DISK_FULL):
        if not remove_unrecorded(folder):
            folder.rmdir()
    elif isinstance(error, VerificationError):
        remove_unrecorded(folder, REPORT)
    else:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked(folder: Path, message: str) -> Iterator[None]:
    """Locks the folder itself, so the lock ends with its process.

    Raises UsageError with the message if another process has locked it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not (folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat())):
            raise BlockingIOError
        yield
    except BlockingIOError:
        raise UsageError(message) from None
    finally:
        os.close(descriptor)


def _old(out: Path) -> Path:
    """The place of a folder until its successor has the name."""
    return out.parent / f".{out.name}{OLD}"


def _place(folder: Path, out: Path) -> None:
    """Moves the files of `folder` to `out`. They replace the bundle there. Everything else there stays."""
    if not os.path.lexists(out):
        os.replace(folder, out)
        return
    new = files_below(folder)
    _set_aside(out, new)
    if folder.parent == out:
        stale = bundle_files(out) - set(new)
        for name in sorted(new, key=MANIFEST.__eq__):  # the manifest last
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(folder / name, out / name)
        shutil.rmtree(folder)
        _remove(out, stale)
        return
    os.replace(out, _old(out))
    try:
        os.replace(folder, out)
    except OSError:
        os.replace(_old(out), out)
        raise
    _carry_over(_old(out), out)


def _carry_over(old: Path, out: Path) -> None:
    """Moves everything but the bundle from `old` to `out`, then removes `old`."""
    replaced = bundle_files(old)
    move_into(out, old, {old / name for name in replaced})
    _remove(old, replaced)
    if old.exists():
        old.rmdir()


def _recover(out: Path) -> None:
    """Completes what a process that was killed left in `_old(out)`.

    Raises UsageError on anything else there, because the export needs this place at its end.
    """
    old = _old(out)
    if not os.path.lexists(old):
        return
    if not bundle_files(old):
        raise UsageError(f"{old}: is in the way of the export; move it to another place")
    if os.path.lexists(out):
        _carry_over(old, out)
    else:
        os.replace(old, out)


def _set_aside(out: Path, new: Collection[str]) -> None:
    """Moves files that are not of the bundle into a hidden folder of `out`, if one of the `new` files needs
    their place, or if the new bundle would be refused because of them.
    """
    needed = {str(part) for name in new for part in (PurePosixPath(name), *PurePosixPath(name).parents)}
    kept = next(path for number in count(1) if not (path := out / f".kept-{number}").exists())
    for name in unlisted(out, bundle_files(out)):
        parents = map(str, PurePosixPath(name).parents)
        is_refused = could_be_read(name) or (out / name).is_symlink()
        if is_refused or name in needed or not set(new).isdisjoint(parents):
            (kept / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(out / name, kept / name)
            log.warning("%s: is not of the bundle; moved to %s", out / name, kept / name)


def _remove(folder: Path, names: Collection[str]) -> None:
    """Removes files, the manifest last, and the folders that become empty."""
    for name in sorted(names, key=MANIFEST.__eq__):
        if (folder / name).parent.resolve() == folder.resolve() / PurePosixPath(name).parent:  # no link
            (folder / name).unlink(missing_ok=True)
        for parent in PurePosixPath(name).parents[:-1]:
            with suppress(OSError):
                (folder / parent).rmdir()


def bundle_files(folder: Path) -> set[str]:
    """Paths of the files in `folder` that belong to the bundle of its manifest; empty if there is no bundle.

    An edited README does not belong to it. A manifest of any version counts, also one that is not valid.
    """
    try:
        content = json.loads((folder / MANIFEST).read_bytes())
        names = [name for name in content["files"] if is_plain_path(name) and not (folder / name).is_dir()]
        hashes = {name: content["files"][name]["sha256"] for name in names}
        is_bundle = {"family", "target"} <= content["job"].keys()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return set()
    if not is_bundle:
        return set()
    readme = hashes.pop(README, None)
    is_ours = (folder / README).is_file() and file_entry(folder / README).sha256 == readme
    return {MANIFEST, REPORT, VECTORS, *hashes} | ({README} if is_ours else set())


def check_output(out: Path) -> None:
    """Checks before the work that a bundle can be written to `out`: a new folder, an empty one, or a bundle.

    Hidden files do not count. Raises UsageError, which names what is there.
    """
    check_utf8(out)
    try:
        place = next(path for path in (out, *out.absolute().parents) if path.exists())
        if not place.is_dir():
            raise UsageError(f"{place}: is a file, expected a folder; name another")
        if not os.access(place, os.W_OK):
            raise UsageError(f"{place}: is not writable; name another folder")
        names = sorted(path.name for path in out.iterdir()) if place == out else []
    except OSError as error:
        raise UsageError(f"{out}: {reason_of(error)}") from None
    names = [
        name for name in names if not name.startswith(".") and name != "lost+found"
    ]  # a mount point has it
    if names and not bundle_files(out):
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        raise UsageError(
            f"{out}: is no bundle: it has {', '.join(names[:MAX_NAMED])}{more}; nothing there is replaced; "
            "name a new folder"
        )


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

    def retain(self, names: Collection[str]) -> None:
        """Removes graphs of other names: another export to this folder was interrupted."""
        if others := self._graphs.keys() - set(names):
            for name in others:
                del self._graphs[name]
            self._record()
            remove_unrecorded(self._folder)

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


_open_cache: ContextVar[Callable[[Path], ResumeCache]] = ContextVar("open_cache", default=ResumeCache)


def open_cache(folder: Path) -> ResumeCache:
    """The finished graphs of the export in `folder`."""
    return _open_cache.get()(folder)


@contextmanager
def cached_by(opened: Callable[[Path], ResumeCache]) -> Iterator[None]:
    """Exports in this context take finished graphs from `opened(folder)`, which may know of others."""
    token = _open_cache.set(opened)
    try:
        yield
    finally:
        _open_cache.reset(token)


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
