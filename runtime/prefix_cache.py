"""`PrefixCache`: cache rows of the part of a prompt that does not depend on its text, stored in the user's
cache folder.

The rows are those that the same engine computed from the same bundle. An utterance that loads them gives the
same samples, bit for bit, as one that computes them.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bundle.errors import VoxportError
from bundle.files import write_whole
from bundle.manifest import MANIFEST, Bundle
from bundle.user_cache import private_folder
from runtime.engines.base import Arrays

MAX_BYTES = 2**31  # of all files; a voice of the published model takes 45 MB at most
log = logging.getLogger(__name__)

Shapes = Mapping[str, tuple[int, ...]]


class PrefixCache:
    """Files `prefixes/KEY.safetensors` of the user's cache folder.

    Bundles cannot write there, because foreign rows would change speech without an error. If the folder
    cannot be used, nothing is stored and nothing is read, and no error is raised.
    """

    def __init__(self, bundle: Bundle, engine: str):
        """`engine` names what decides the rows besides the bundle: the engine, its version and its
        precision.
        """
        self._bundle = hashlib.sha256((bundle.folder / MANIFEST).read_bytes() + engine.encode()).digest()
        self._last: tuple[str, Arrays] | None = None  # consecutive requests often have one voice
        self._folder: Path | None = None
        try:
            self._folder = private_folder("prefixes")
        except OSError as error:
            log.info("the rows of voices are not stored: %s", error)

    def load(self, prefix: bytes, shapes: Shapes) -> Arrays | None:
        """The rows of every cache by name; None where no undamaged file has them.

        `prefix` is what the rows are computed from. `shapes` are the expected ones by name.
        """
        key = self._key(prefix)
        last = self._last  # read once: other threads replace it
        if last and last[0] == key:
            return last[1]
        path = self._path(key)
        if not path or not path.exists():
            return None
        try:
            rows = _read(path, shapes)
        except (OSError, SafetensorError, ValueError, RecursionError) as error:
            log.warning("%s: damaged (%s); the rows of the voice are computed again", path, error)
            return None
        with suppress(OSError):
            path.touch()  # the files that are used stay
        self._last = key, rows
        return rows

    def save(self, prefix: bytes, rows: Arrays) -> None:
        """Stores the rows of every cache by name. The files that were not used for longest make room."""
        key = self._key(prefix)
        rows = {name: np.ascontiguousarray(array) for name, array in rows.items()}
        self._last = key, rows
        if not (path := self._path(key)):
            return
        try:
            if not path.is_file():
                path.unlink(missing_ok=True)  # a pipe would be written to in place
            write_whole(path, save(rows, metadata={"sha256": json.dumps(_digests(rows))}))
            _evict_oldest(path.parent)
        except (OSError, VoxportError) as error:
            log.info("%s: not stored: %s", path, error)

    def _key(self, prefix: bytes) -> str:
        return hashlib.sha256(self._bundle + prefix).hexdigest()[:32]

    def _path(self, key: str) -> Path | None:
        return self._folder / f"{key}.safetensors" if self._folder else None


def _read(path: Path, shapes: Shapes) -> Arrays:
    """Raises ValueError on rows that are not the expected ones."""
    if not path.is_file():  # opening a pipe would wait for ever
        raise ValueError("not a file")
    with safe_open(path, framework="numpy") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  not a dict
        found = {name: tuple(part.get_shape()) for name, part in slices.items()}
        if found != dict(shapes) or not {part.get_dtype() for part in slices.values()} <= {"F16", "F32"}:
            raise ValueError("its shapes or types are not those of the bundle's caches")
        expected = json.loads((file.metadata() or {}).get("sha256", "{}"))
        rows = {name: file.get_tensor(name) for name in found}
    if _digests(rows) != expected:
        raise ValueError("its hash differs")
    return rows


def _digests(rows: Arrays) -> dict[str, str]:
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in rows.items()}


def _evict_oldest(folder: Path) -> None:
    entries = [(path, path.stat()) for path in folder.glob("*.safetensors")]
    entries.sort(key=lambda entry: entry[1].st_mtime, reverse=True)
    total = 0
    for path, found in entries:
        total += found.st_size
        if total > MAX_BYTES:
            path.unlink(missing_ok=True)
