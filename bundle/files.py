"""Files of a folder, and files that are written whole or not at all."""

import os
import secrets
import stat
from io import RawIOBase
from pathlib import Path

from bundle.errors import UsageError, VoxportError


def files_below(folder: Path) -> list[str]:
    """Paths of all files below `folder`, relative to it, sorted."""
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def check_writable(path: Path) -> None:
    """Checks before the work starts that its result can be written at `path`. Raises UsageError."""
    path = _target(path)
    if not os.path.isdir(path.parent):
        raise UsageError(f"{path}: the folder {path.parent} does not exist; create it or name another")
    if os.path.isdir(path):
        raise UsageError(f"{path}: is a folder, expected the name of a file; name a file in it")
    if _is_special(path):
        if not os.access(path, os.W_OK):
            raise UsageError(f"{path}: cannot be written to; name another")
    elif not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the folder {path.parent} is not writable; name another")


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all: to a temporary file beside it, which is then renamed.

    A link is followed. A device or a pipe is written to in place. A file that is replaced keeps its
    permissions. Raises VoxportError, or UsageError on a link that leads nowhere.
    """
    path = _target(path)
    try:
        if _is_special(path):
            with open(path, "wb", buffering=0) as file:
                _write_all(file, content)
        else:
            _replace(path, content)
    except OSError as error:
        raise VoxportError(
            f"{path}: cannot write {len(content)} bytes: {error.strerror or error}; "
            "free space or name another place"
        ) from None


def _target(path: Path) -> Path:
    """Where a link leads, otherwise the path itself."""
    found = Path(os.path.realpath(path))  # pathlib's own methods raise on a name that is too long
    if os.path.islink(found):
        raise UsageError(f"{path}: is a link that leads to itself; name another file")
    return found


def _replace(path: Path, content: bytes) -> None:
    temporary = path.parent / f".{secrets.token_hex(8)}.part"
    try:
        temporary.write_bytes(content)
        if path.exists():
            temporary.chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_all(file: RawIOBase, content: bytes) -> None:
    view = memoryview(content)
    while view:  # a pipe takes a part at a time
        view = view[file.write(view) :]


def _is_special(path: Path) -> bool:
    """Whether it exists and is neither a file nor a folder: a device, a pipe or a socket."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
