"""`PrefixCache`: cache rows of a voice's prompt prefix, stored beside the bundle.

The rows are those that the same engine computed from the same bundle. An utterance that loads them gives the
same samples, bit for bit, as one that computes them.
"""

import hashlib
import json
import logging
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bundle.errors import VoxportError
from bundle.files import write_whole
from bundle.manifest import MANIFEST, Bundle
from runtime.engines.base import Arrays
from runtime.families.voxtral_tts.decoder import Prompt

SUFFIX = ".prefixes"
log = logging.getLogger(__name__)


class PrefixCache:
    """Files `BUNDLE.prefixes/KEY.safetensors`.

    If the folder is not writable, nothing is stored, and no error is raised.
    """

    def __init__(self, bundle: Bundle, engine: str):
        """`engine` names what decides the rows besides the bundle: the engine, its version and its
        precision.
        """
        folder = bundle.folder.resolve()
        self._folder = folder.with_name(folder.name + SUFFIX)
        self._bundle = hashlib.sha256((bundle.folder / MANIFEST).read_bytes() + engine.encode()).digest()
        self._last: tuple[Path, Arrays] | None = None  # consecutive requests often have one voice

    def load(self, prompt: Prompt) -> Arrays | None:
        """The rows of every cache by name; None where no undamaged file has them."""
        path = self._path(prompt)
        last = self._last  # read once: other threads replace it
        if last and last[0] == path:
            return last[1]
        try:
            with safe_open(path, framework="numpy") as file:
                expected = json.loads((file.metadata() or {}).get("sha256", "{}"))
                rows = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
        except (OSError, SafetensorError, ValueError):
            return None
        if _digests(rows) != expected:
            log.warning("%s: damaged; the rows of the voice are computed again", path)
            return None
        self._last = path, rows
        return rows

    def save(self, prompt: Prompt, rows: Arrays) -> None:
        """Stores the rows of every cache by name."""
        path = self._path(prompt)
        rows = {name: np.ascontiguousarray(array) for name, array in rows.items()}
        self._last = path, rows
        try:
            self._folder.mkdir(exist_ok=True)
            write_whole(path, save(rows, metadata={"sha256": json.dumps(_digests(rows))}))
        except (OSError, VoxportError) as error:
            log.info("%s: not stored: %s", path, error)

    def _path(self, prompt: Prompt) -> Path:
        key = hashlib.sha256(self._bundle + prompt.prefix.tobytes() + prompt.voice.tobytes()).hexdigest()[:32]
        return self._folder / f"{key}.safetensors"


def _digests(rows: Arrays) -> dict[str, str]:
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in rows.items()}
