"""Contents of folders."""

from pathlib import Path


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of every file by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
