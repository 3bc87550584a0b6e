"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from bundle.errors import UsageError, VoxportError


def check_place(path: Path) -> None:
    """Whether a file may be written at `path`; call it before the work whose result goes there. Raises UsageError."""
    if not os.path.isdir(path.parent):  # pathlib's raises on a name too long
        raise UsageError(f"{path}: the folder {path.parent} does not exist; create it or name another")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: the folder {path.parent} cannot be written to; name another")
    if os.path.isdir(path):
        raise UsageError(f"{path}: is a folder, expected the name of a file; name a file in it")


def write_whole(path: Path, content: bytes) -> None:
    """Writes beside `path`, then renames: no reader sees half a file, and a failure leaves the old one. Raises VoxportError."""
    beside = path.parent / f".{secrets.token_hex(8)}.part"
    try:
        beside.write_bytes(content)
        os.replace(beside, path)
    except OSError as error:
        raise VoxportError(
            f"{path}: cannot write {len(content)} bytes: {error.strerror or error}; free space or name another place"
        ) from None
    finally:
        beside.unlink(missing_ok=True)
