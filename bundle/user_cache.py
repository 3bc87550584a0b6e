"""The user's folders of voxport, outside of every bundle: what may be computed again, and what may not."""

import os
import stat
from pathlib import Path

from platformdirs import user_cache_path, user_data_path


def user_cache() -> Path:
    """The folder, which may not exist yet: `$XDG_CACHE_HOME/voxport` on Linux."""
    return user_cache_path("voxport", appauthor=False)


def user_data() -> Path:
    """The folder of what the user made, which may not exist yet: `$XDG_DATA_HOME/voxport` on Linux."""
    return user_data_path("voxport", appauthor=False)


def private_folder(name: str) -> Path:
    """`name` in the user's cache folder, made if it is missing. Only the user may read or write it.

    Raises OSError if it cannot be made, or others could write to it.
    """
    folder = user_cache() / name
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if _is_own(folder.parent) and folder.parent.stat().st_mode & 0o022:
        folder.parent.chmod(0o700)
    folder.mkdir(mode=0o700, exist_ok=True)
    for part in (folder.parent, folder):
        if not _is_own(part) or part.stat().st_mode & 0o022:
            raise PermissionError(f"{part} is a link, or others may write to it; remove it")
    return folder


def _is_own(folder: Path) -> bool:
    """Whether it is a folder of the user, and no link."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and (not hasattr(os, "getuid") or found.st_uid == os.getuid())
