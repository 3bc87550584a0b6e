"""Files of a folder, and files that are written whole or not at all."""

import errno
import os
import secrets
import stat
from io import RawIOBase
from pathlib import Path

from bundle.errors import UsageError, VoxportError

MAX_LINKS = 40  # that lead to each other, as in Linux


def files_below(folder: Path) -> list[str]:
    """Paths of all files below `folder`, relative to it, sorted."""
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def folder_name(folder: Path) -> str:
    """The name of a folder or of what it links to. A snapshot of the hub has the name of its repository."""
    folder = folder.resolve()
    repository = folder.parent.parent.name
    if folder.parent.name == "snapshots" and repository.startswith("models--"):
        return repository.split("--", 2)[-1]  # models--OWNER--NAME; NAME may have dashes
    return folder.name


def check_writable(path: Path) -> None:
    """Checks before the work starts that its result can be written at `path`. Raises UsageError."""
    path = _target(path)
    if _is_descriptor(path):
        return
    if not os.path.isdir(path.parent):
        raise UsageError(f"{path}: the folder {path.parent} does not exist; create it or name another")
    if os.path.isdir(path):
        raise UsageError(f"{path}: is a folder, expected the name of a file; name a file in it")
    if os.path.exists(path) and (not os.access(path, os.W_OK) or stat.S_ISSOCK(os.stat(path).st_mode)):
        raise UsageError(f"{path}: cannot be written to; name another")
    if not _is_special(path) and not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the folder {path.parent} is not writable; name another")


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all: to a temporary file beside it, which is then renamed.

    A link is followed. A device, a pipe or an open file such as /dev/stdout is written to in place, behind
    what it has. A file that is replaced keeps its permissions. Raises VoxportError, or UsageError on a link
    that leads nowhere.
    """
    path = _target(path)
    try:
        if _is_special(path) or _is_descriptor(path):
            with open(path, "ab", buffering=0) as file:
                _write_all(file, content)
        else:
            _replace(path, content)
    except OSError as error:
        raise VoxportError(
            f"{path}: cannot write {len(content)} bytes: {error.strerror or error}; "
            "free space or name another place"
        ) from None


def _target(path: Path) -> Path:
    """Where a link leads, otherwise the path itself. The link of an open file is not followed."""
    if _is_descriptor(path):
        return path
    found = Path(os.path.realpath(path))  # pathlib's own methods raise on a name that is too long
    if os.path.islink(found):
        raise UsageError(f"{path}: is a link that leads to itself; name another file")
    return found


def _replace(path: Path, content: bytes) -> None:
    temporary = path.parent / f".{secrets.token_hex(8)}.part"
    try:
        temporary.write_bytes(content)
        if path.exists():
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, "it is read-only")
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_all(file: RawIOBase, content: bytes) -> None:
    view = memoryview(content)
    while view:  # a pipe takes a part at a time
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
