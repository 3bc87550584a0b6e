"""Folders and their contents."""

from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp

_TEMPORARY = TemporaryDirectory(prefix="voxport-tests-")  # removed when the process ends


def private_folder() -> Path:
    """A new folder, for helpers that are no fixtures."""
    return Path(mkdtemp(dir=_TEMPORARY.name))


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of every file by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
