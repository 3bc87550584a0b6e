"""Files by hash, and files that are written whole or not at all."""

import hashlib
import os
import secrets
from pathlib import Path
from typing import Annotated

from pydantic import Field

from bundle.errors import UsageError, VoxportError
from bundle.record import Record


class FileEntry(Record):
    """Size in bytes and SHA-256 of a file."""

    size: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


def file_entry(path: Path) -> FileEntry:
    """Size and hash of a file, which is read in blocks."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(size=path.stat().st_size, sha256=digest)


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
        reason = error.strerror or error
        raise VoxportError(
            f"{path}: cannot write {len(content)} bytes: {reason}; free space or name another place"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
