"""Files of a folder, and files that are written whole or not at all."""

import os
import secrets
from pathlib import Path

from bundle.errors import UsageError, VoxportError


def files_below(folder: Path) -> list[str]:
    """Paths of all files below `folder`, relative to it, sorted."""
    return [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]


def check_writable(path: Path) -> None:
    """Checks before the work starts that its result can be written at `path`. Raises UsageError."""
    if not os.path.isdir(path.parent):  # pathlib's own check raises on a name that is too long
        raise UsageError(f"{path}: the folder {path.parent} does not exist; create it or name another")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the folder {path.parent} is not writable; name another")
    if os.path.isdir(path):
        raise UsageError(f"{path}: is a folder, expected the name of a file; name a file in it")


def write_whole(path: Path, content: bytes) -> None:
    """Writes a temporary file beside `path` and renames it. A failure keeps the old file.

    Raises VoxportError.
    """
    temporary = path.parent / f".{secrets.token_hex(8)}.part"
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise VoxportError(
            f"{path}: cannot write {len(content)} bytes: {error.strerror or error}; "
            "free space or name another place"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
