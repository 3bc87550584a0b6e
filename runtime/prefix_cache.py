"""`PrefixCache`: cache rows of the part of a prompt that does not depend on its text, stored in the user's
cache folder.

The rows are those that the same engine computed from the same bundle. An utterance that loads them gives the
same samples, bit for bit, as one that computes them.
"""

import hashlib
import json
import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from voxport.bundle.errors import VoxportError
from voxport.bundle.files import write_whole
from voxport.bundle.manifest import MANIFEST, Bundle
from voxport.bundle.user_cache import private_folder
from voxport.runtime.engines.base import Arrays

MAX_BYTES = 2**31  # for all files; a voice of the published model takes 45 MB at most
MAX_MEMORY_BYTES = 2**28  # rows of a bundle that are kept in memory
MAX_UNWRITTEN = 4  # files; the rows of further ones are kept in memory only
WRITER = ThreadPoolExecutor(1, "prefix-writer")  # files take a second; the exit of the program waits for it
log = logging.getLogger(__name__)


class PrefixCache:
    """Files `prefixes/KEY.safetensors` of the user's cache folder, and the last used rows in memory.

    Thread-safe.

    Bundles cannot write there, because foreign rows would change speech without an error. If the folder
    cannot be used, nothing is stored and nothing is read, and no error is raised.
    """

    def __init__(self, bundle: Bundle, engine: str):
        """`engine` names what decides the rows besides the bundle: the engine, its version and its
        precision. Without a name no rows are kept, so that a program sees how each prompt is computed.
        """
        self._keeps = bool(engine)
        self._bundle = hashlib.sha256((bundle.folder / MANIFEST).read_bytes() + engine.encode()).digest()
        self._recent: OrderedDict[str, Arrays] = OrderedDict()  # by key; the last one was used last
        self._unwritten: set[str] = set()  # keys
        self._lock, self._reading = Lock(), Lock()
        self._folder: Path | None = None
        if not engine:
            return
        try:
            self._folder = private_folder("prefixes")
        except OSError as error:
            log.info("the rows of voices are not stored: %s", error)

    def load(self, prefix: bytes) -> Arrays | None:
        """The rows of every cache by name; None if no undamaged file has them.

        `prefix` is what the rows are computed from.
        """
        with self._reading:  # a second request of the voice finds the rows of the first one in memory
            rows = self.kept(prefix)
            return self._read(prefix) if rows is None else rows

    def kept(self, prefix: bytes) -> Arrays | None:
        """The rows of every cache by name, if they are in memory. Reads no file."""
        key = self._key(prefix)
        with self._lock:
            if key in self._recent:
                self._recent.move_to_end(key)
            return self._recent.get(key)

    def _read(self, prefix: bytes) -> Arrays | None:
        key = self._key(prefix)
        path = self._path(key)
        if not path or not path.exists():
            return None
        try:
            rows = _read(path)
        except (OSError, SafetensorError, ValueError, RecursionError) as error:
            log.warning("%s: damaged (%s); the rows of the voice are computed again", path, error)
            return None
        with suppress(OSError):
            path.touch()  # the files that are used stay
        self.keep(prefix, rows)
        return rows

    def keep(self, prefix: bytes, rows: Arrays) -> None:
        """Keeps the rows of every cache by name in memory, in place of those that were used longest ago."""
        if not self._keeps:
            return
        key = self._key(prefix)
        with self._lock:
            self._recent[key] = rows
            self._recent.move_to_end(key)
            while len(self._recent) > 1 and sum(map(_size, self._recent.values())) > MAX_MEMORY_BYTES:
                self._recent.popitem(last=False)

    def save(self, prefix: bytes, rows: Arrays) -> None:
        """Keeps the rows of every cache by name, and stores them in another thread.

        The files that were not used for longest make room.
        """
        key, rows = self._key(prefix), {name: np.ascontiguousarray(array) for name, array in rows.items()}
        self.keep(prefix, rows)
        with self._lock:
            if not (path := self._path(key)) or len(self._unwritten) >= MAX_UNWRITTEN:
                return
            self._unwritten.add(key)
        with suppress(RuntimeError):  # the program ends
            WRITER.submit(self._write, key, path, rows)

    def _write(self, key: str, path: Path, rows: Arrays) -> None:
        try:
            if not path.is_file():
                path.unlink(missing_ok=True)  # a pipe would be written to in place
            write_whole(path, save(rows, metadata={"sha256": json.dumps(_digests(rows))}))
            _evict_oldest(path.parent)
        except (OSError, VoxportError) as error:
            log.warning("%s: not stored: %s", path, error)
        finally:
            with self._lock:
                self._unwritten.discard(key)

    def _key(self, prefix: bytes) -> str:
        return hashlib.sha256(self._bundle + prefix).hexdigest()[:32]

    def _path(self, key: str) -> Path | None:
        return self._folder / f"{key}.safetensors" if self._folder else None


def _size(rows: Arrays) -> int:
    """Bytes."""
    return sum(array.nbytes for array in rows.values())


def _read(path: Path) -> Arrays:
    """Raises ValueError on a file that is not as it was written."""
    if not path.is_file():  # opening a pipe would wait for ever
        raise ValueError("not a file")
    with safe_open(path, framework="numpy") as file:
        expected = json.loads((file.metadata() or {}).get("sha256", "{}"))
        rows = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    if _digests(rows) != expected:
        raise ValueError("its hash differs")
    return rows


def _digests(rows: Arrays) -> dict[str, str]:
    """Hashes of shapes, types and values."""
    return {
        name: hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()
        for name, array in rows.items()
    }


def _evict_oldest(folder: Path) -> None:
    entries = [(path, path.stat()) for path in folder.glob("*.safetensors")]
    entries.sort(key=lambda entry: entry[1].st_mtime, reverse=True)
    total = 0
    for path, found in entries:
        total += found.st_size
        if total > MAX_BYTES:
            path.unlink(missing_ok=True)
