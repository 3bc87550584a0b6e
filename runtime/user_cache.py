"""The folder where the runtime keeps what it may compute again: outside of every bundle."""

import os
import stat
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder(name: str) -> Path:
    """`name` in the user's cache folder, made where it is missing. Only the user may read or write it.

    Raises OSError where it cannot be made, or where others may write to it.
    """
    folder = user_cache_path("voxport", appauthor=False) / name
    for part in (folder.parent, folder):
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(part)
    return folder


def _check_private(folder: Path) -> None:
    if not hasattr(os, "getuid"):  # Windows: the folder of a user's data is private
        return
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} is a link, or others may write to it; remove it")
