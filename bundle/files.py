"""Files of a folder, and files that are written whole or not at all."""

import errno
import os
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO, RawIOBase
from itertools import chain, count
from pathlib import Path
from tempfile import TemporaryFile
from typing import Self

from voxport.bundle.errors import UsageError, VoxportError

MAX_LINKS = 40  # that lead to each other, as in Linux
BLOCK_BYTES = 2**20
MAX_STEM_BYTES = 200  # in front of `.partial` and an extension; file systems take 255 in all
ADVICE = {
    errno.ENOSPC: "free space or name another place",
    errno.EDQUOT: "free space of your quota or name another place",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f) or name another file system",
    errno.EACCES: "name a place that you may write to",
    errno.EPERM: "name a place that you may write to",
    errno.EROFS: "name a place that can be written",
    errno.ENAMETOOLONG: "give a shorter name",
}


def files_below(folder: Path) -> list[str]:
    """Paths of all files below `folder`, relative to it, sorted."""
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def move_into(target: Path, source: Path, kept: Collection[Path] = ()) -> None:
    """Moves what is in the folder `source` into the folder `target`, except the files `kept`.

    A folder in both is merged, a file in both is replaced. Folders that become empty are removed.
    """
    for path in list(source.iterdir()):
        place = target / path.name
        holds_kept = any(path in each.parents for each in kept)
        if path.is_dir() and not path.is_symlink() and (place.is_dir() or holds_kept):
            place.mkdir(exist_ok=True)
            move_into(place, path, kept)
            with suppress(OSError):  # not empty
                place.rmdir()
        elif path not in kept:
            os.replace(path, place)
    with suppress(OSError):
        source.rmdir()


def is_fixed(folder: Path) -> bool:
    """Whether a folder cannot be renamed: a mount point, a folder in one that is not writable, and the
    current folder, because a shell would stay in the old one.
    """
    if not os.path.isdir(folder):
        return False
    real = os.path.realpath(folder)
    is_current = os.path.samefile(real, os.curdir)
    return is_current or os.path.ismount(real) or not os.access(os.path.dirname(real), os.W_OK)


def check_utf8(path: Path) -> None:
    """Raises UsageError on a name that is not UTF-8: engines open no other."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{path}: a name in this path is not UTF-8, and engines open no other; rename it"
        ) from None


def folder_name(folder: Path) -> str:
    """The name of a folder or of what it links to. A snapshot of the hub has the name of its repository."""
    folder = folder.resolve()
    is_snapshot = folder == hub_snapshot(folder)
    return folder.parents[1].name.split("--", 2)[-1] if is_snapshot else folder.name


def hub_snapshot(folder: Path) -> Path | None:
    """`models--OWNER--NAME/snapshots/COMMIT` of the hub's cache that `folder` is or is in, else None."""
    real = folder.resolve()
    places = (place for place in (real, *real.parents) if place.parent.name == "snapshots")
    return next((place for place in places if place.parents[1].name.startswith("models--")), None)


def hub_origin(folder: Path) -> str | None:
    """`OWNER/NAME@COMMIT` of a folder in the hub's cache; None for other folders."""
    if not (snapshot := hub_snapshot(folder)):
        return None
    name = "/".join(snapshot.parents[1].name.split("--", 2)[1:])  # NAME may have dashes
    return f"{name}@{snapshot.name}"


def link_name(path: Path) -> str:
    """The name that the user gave to a folder: of the link, if it is one, else its `folder_name`."""
    given = Path(os.path.abspath(path))
    return given.name if given.is_symlink() else folder_name(given)


def check_writable(path: Path) -> None:
    """Checks before the work starts that its result can be written at `path`. Raises UsageError."""
    path = _target(path)
    if _is_descriptor(path):
        return
    if os.path.exists(path.parent) and not os.path.isdir(path.parent):
        raise UsageError(f"{path}: {path.parent} is a file, expected a folder; name another")
    if not os.path.isdir(path.parent):
        raise UsageError(f"{path}: the folder {path.parent} does not exist; create it or name another")
    if os.path.isdir(path):
        raise UsageError(f"{path}: is a folder, expected the name of a file; name a file in it")
    if os.path.exists(path) and (not os.access(path, os.W_OK) or stat.S_ISSOCK(os.stat(path).st_mode)):
        raise UsageError(f"{path}: cannot be written to; name another")
    if not _is_special(path) and not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the folder {path.parent} is not writable; name another")


def check_apart(output: Path, field: str, bundles: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Checks before the work that writing `output` changes nothing that is read. Raises UsageError."""
    if _is_descriptor(output) or _is_special(output):
        return
    place = Path(os.path.realpath(output))
    for bundle in bundles:
        if place.is_relative_to(os.path.realpath(bundle)):
            reason = f"is in the bundle {bundle}, which this command only reads; name a place outside of it"
            raise UsageError(f"{field} {output}: {reason}", field=field)
    for path in inputs:
        if os.path.exists(path) and os.path.exists(place) and os.path.samefile(path, place):
            raise UsageError(f"{field} {output}: is also read; name another file", field=field)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, as `StagedFile` does, and raises its errors."""
    with StagedFile(path) as staged:
        staged.write(content)


class StagedFile:
    """A file that is written beside its place, and gets its name when the context ends without an error.

    A link is followed. A device, a pipe or an open file such as /dev/stdout gets the content at the end,
    behind what it has. A file that is replaced keeps its permissions. The methods raise VoxportError; the
    first also raises UsageError on a link that leads to itself.
    """

    def __init__(self, path: Path):
        self.path = _target(path)
        self._is_in_place = _is_special(self.path) or _is_descriptor(self.path)
        self._temporary = self.path.parent / f".{secrets.token_hex(8)}.part"
        with self._reported():
            self.file = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._commit()
        finally:
            self.file.close()
            if not self._is_in_place:
                self._temporary.unlink(missing_ok=True)

    def write(self, content: bytes) -> None:
        with self._reported():
            write_all(self.file, content)

    def keep_partial(self, content: bytes = b"") -> str:
        """Adds `content`, and gives all of it its `partial_path`. Returns where it is, or why it is lost."""
        if self._is_in_place:
            return f"lost, because {self.path} is no file"
        path = partial_path(self.path)
        try:
            write_all(self.file, content)
            os.replace(self._temporary, path)
        except OSError as error:
            return f"lost: {path}: {error.strerror or error}"
        return f"kept in {path}"

    def _open(self) -> FileIO:
        """Without a buffer, which would hide errors until it is full."""
        if self._is_in_place:
            return TemporaryFile(buffering=0)
        return FileIO(self._temporary, "w+")

    def _commit(self) -> None:
        with self._reported():
            if self._is_in_place:
                self.file.seek(0)
                with open(self.path, "ab", buffering=0) as place:
                    while block := self.file.read(BLOCK_BYTES):
                        write_all(place, block)
                return
            if self.path.exists():
                if not os.access(self.path, os.W_OK):
                    raise PermissionError(errno.EACCES, "it is read-only")
                self._temporary.chmod(stat.S_IMODE(self.path.stat().st_mode))
            os.replace(self._temporary, self.path)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise VoxportError(f"{self.path}: cannot be written: {reason_of(error)}") from None


def partial_path(path: Path) -> Path:
    """Where the result of interrupted work is kept: `NAME.partial.EXTENSION`, numbered if that exists."""
    stem = path.stem.encode()[:MAX_STEM_BYTES].decode(errors="ignore")
    numbers = chain([""], (f"-{number}" for number in count(2)))
    paths = (path.with_name(f"{stem}.partial{number}{path.suffix}") for number in numbers)
    return next(each for each in paths if not os.path.lexists(each))


def reason_of(error: OSError) -> str:
    """What the system says about a file that cannot be written, and what to do."""
    return f"{error.strerror or error}; {ADVICE.get(error.errno or 0, 'name another place')}"


def _target(path: Path) -> Path:
    """Where a link leads, otherwise the path itself. The link of an open file is not followed."""
    if _is_descriptor(path):
        return path
    found = Path(os.path.realpath(path))  # pathlib's own methods raise on a name that is too long
    if os.path.islink(found):
        raise UsageError(f"{path}: is a link that leads to itself; name another file")
    return found


def write_all(file: RawIOBase, content: bytes) -> None:
    """A pipe, or a disk that is nearly full, takes a part at a time."""
    view = memoryview(content)
    while view:
        view = view[file.write(view) :]


def _is_descriptor(path: Path) -> bool:
    """Whether the path names an open file of a process, as /dev/stdout does: directly or through links."""
    name = os.fspath(path)
    for _ in range(MAX_LINKS):
        parent = os.path.realpath(os.path.dirname(name) or ".")
        if parent.startswith("/proc/") or parent == "/dev/fd":
            return True
        if not os.path.islink(name):
            return False
        name = os.path.join(parent, os.readlink(name))
    return False


def _is_special(path: Path) -> bool:
    """Whether it exists and is neither a file nor a folder: a device, a pipe or a socket."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
