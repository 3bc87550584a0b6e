"""What every utterance of a voice begins with, computed once: rows of the KV cache up to the text, kept beside the bundle.

The rows are those that the same engine computed from the same bundle, so an utterance that begins with kept rows is, to the
bit, the one that computes them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bundle.bundle import Bundle
from bundle.errors import VoxportError
from bundle.files import write_whole
from bundle.manifest import MANIFEST
from runtime.engines.states import Arrays

SUFFIX = ".prefixes"
log = logging.getLogger(__name__)


class PrefixCache:
    """`BUNDLE.prefixes/KEY.safetensors`; without a place to write to, nothing is kept and nothing fails."""

    def __init__(self, bundle: Bundle, engine: str):
        """`engine` says what else decides the rows besides the bundle's bytes: the engine, its version, its precision."""
        self._folder = bundle.folder.resolve().with_name(bundle.folder.resolve().name + SUFFIX)
        self._bundle = hashlib.sha256((bundle.folder / MANIFEST).read_bytes() + engine.encode()).digest()
        self._last: tuple[Path, Arrays] | None = None  # a voice speaks several times

    def load(self, ids: np.ndarray, voice: np.ndarray) -> Arrays | None:
        """Rows of every cache by state; None where there are none, or none that are whole."""
        path = self._path(ids, voice)
        last = self._last  # read once: other threads put other voices here
        if last and last[0] == path:
            return last[1]
        try:
            with safe_open(path, framework="numpy") as file:
                said = json.loads((file.metadata() or {}).get("sha256", "{}"))
                rows = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        except (OSError, SafetensorError, ValueError):
            return None
        if {name: _digest(array) for name, array in rows.items()} != said:
            log.warning("%s: damaged; the voice's rows are computed again", path)
            return None
        self._last = path, rows
        return rows

    def keep(self, ids: np.ndarray, voice: np.ndarray, rows: Arrays) -> None:
        path = self._path(ids, voice)
        rows = {name: np.ascontiguousarray(array) for name, array in rows.items()}
        self._last = path, rows
        said = json.dumps({name: _digest(array) for name, array in rows.items()})
        try:
            self._folder.mkdir(exist_ok=True)
            write_whole(path, save(rows, metadata={"sha256": said}))
        except (OSError, VoxportError) as error:
            log.info("%s: not kept: %s", path, error)

    def _path(self, ids: np.ndarray, voice: np.ndarray) -> Path:
        key = hashlib.sha256(self._bundle + ids.tobytes() + voice.tobytes()).hexdigest()[:32]
        return self._folder / f"{key}.safetensors"


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
