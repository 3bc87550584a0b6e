"""Paths in the folder of a bundle: plain ones, links, and files that the manifest does not list."""

import os
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from voxport.bundle.errors import IntegrityError
from voxport.bundle.files import hub_snapshot

# What an engine, or a library that it calls, could read. Other files are for people and their tools.
ENGINE_FILES = (".onnx", ".data", ".pte", ".ptd", ".json", ".safetensors", ".npz", ".bin")
MAX_PATH_BYTES = 200  # every file system takes that
PACKAGES = (".mlpackage", ".mlmodelc", ".aimodel")  # folders that an engine reads as a whole


def is_plain_path(path: str) -> bool:
    """Whether it is a relative path that stays in the folder of the bundle and has no hidden part."""
    plain = path.isprintable() and len(path.encode()) <= MAX_PATH_BYTES and not {"\\", ":"} & set(path)
    # nothing hidden, which the checks of a bundle leave alone; nor `..`
    inside = not path.startswith("/") and not any(
        part.startswith(".") for part in PurePosixPath(path).parts or "."
    )
    return plain and inside and str(PurePosixPath(path)) == path


def check_links(folder: Path) -> None:
    """Raises IntegrityError on a link that leads out of the folder.

    In the cache of a model hub each file is a link to `blobs/HASH` of its own repository. Those are allowed.
    """
    snapshot = hub_snapshot(folder)
    for path in _inside(folder):
        if os.path.islink(path) and not (snapshot and path.resolve().parent == snapshot.parents[1] / "blobs"):
            raise IntegrityError(
                f"{path}: is a link that leads out of the bundle; put the file there, or fetch the bundle "
                "into a folder of its own"
            )


def check_unlisted(folder: Path, listed: Collection[str], regular: Collection[str]) -> None:
    """Raises IntegrityError on a file that is not `listed` and that an engine could read unchecked, and on
    one of `regular` that is no regular file.

    Hidden files beside the manifest are left alone, because hubs and desktops write them.
    """
    for name in regular:
        if os.path.lexists(folder / name) and not os.path.isfile(folder / name):
            raise IntegrityError(f"{folder / name}: is not a file; move it out of the bundle")
    for name in unlisted(folder, listed):
        if could_be_read(name):
            raise IntegrityError(
                f"{folder / name}: is not in the manifest, and an engine could read it; move it out of the "
                "bundle, or export the bundle again"
            )


def could_be_read(name: str) -> bool:
    """Whether an engine could read the file with this path."""
    *_, last = parts = [part.lower() for part in PurePosixPath(name).parts]
    return last.endswith(ENGINE_FILES) or any(part.endswith(PACKAGES) for part in parts)


def unlisted(folder: Path, listed: Collection[str]) -> list[str]:
    """Paths of the files and links that are not `listed`, sorted, except hidden ones beside the manifest."""
    files = (path for path in _inside(folder) if os.path.islink(path) or not os.path.isdir(path))
    return sorted({path.relative_to(folder).as_posix() for path in files}.difference(listed))


def _inside(folder: Path) -> Iterator[Path]:
    """Files and folders below the bundle, except hidden ones beside the manifest, which nothing reads."""
    for parent, folders, names in os.walk(folder):
        if Path(parent) == folder:
            folders[:] = [name for name in folders if not name.startswith(".")]
            names = [name for name in names if not name.startswith(".")]
        yield from (Path(parent, name) for name in (*folders, *names))
