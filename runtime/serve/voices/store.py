"""`VoiceStore`: voices that clients made from recordings, as files of one folder."""

import json
import logging
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock

from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from voxport.bundle.bounds import MAX_VOICE_BYTES
from voxport.bundle.errors import UsageError, VoxportError
from voxport.bundle.files import write_whole
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.text_to_speech import CHECKPOINT

FILE = re.compile(r"(voice_[0-9a-f]{24})\.safetensors")
NAME, BUNDLE, CREATED = "name", "bundle", "created_at"  # keys of the metadata, besides the keys of the family
SECONDS = "seconds"  # length of the recording, a key of the family; older files lack it
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredVoice:
    """A voice made with the bundle `model`, for every bundle of the same `checkpoint`.

    The server made its `id`; the client gave it a `name`. `created_at` is in seconds of Unix time; `seconds`
    is the length of the recording, None if it is not known.
    """

    id: str
    name: str
    model: str
    created_at: int
    path: Path
    checkpoint: str
    seconds: float | None


class VoiceStore:
    """Thread-safe. Files are written whole or not at all, so a server that starts again finds the same."""

    def __init__(self, folder: Path, max_voices: int):
        """Holds at most `max_voices` voices. Raises UsageError if the folder cannot be made or read."""
        self._folder, self._max_voices, self._lock = folder, max_voices, Lock()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = [_read(path) for path in sorted(folder.iterdir()) if FILE.fullmatch(path.name)]
        except OSError as error:
            reason = f"voices: {folder}: {error.strerror or error}; expected a folder"
            raise UsageError(reason, field="voices") from None
        self._voices = {voice.id: voice for voice in found if voice}
        self._checkpoints: Mapping[str, str | None] = {}

    def assign(self, checkpoints: Mapping[str, str | None]) -> None:
        """Takes the checkpoints of the bundles by name. Logs how many voices belong to other ones."""
        self._checkpoints = checkpoints
        others = [voice for voice in self._voices.values() if voice.checkpoint not in checkpoints.values()]
        if others:
            names = ", ".join(sorted({voice.model for voice in others}))
            message = "%s: %d of %d voices are not listed: other checkpoints made them, in bundles named %s"
            log.warning(message, self._folder, len(others), len(self._voices), names)

    def of(self, model: str) -> list[StoredVoice]:
        """The voices of the checkpoint of a bundle."""
        checkpoint = self._checkpoints.get(model)
        with self._lock:
            voices = [voice for voice in self._voices.values() if voice.checkpoint == checkpoint is not None]
        return [replace(voice, model=model) for voice in voices]

    def check_room(self) -> None:
        """Raises ApiError if the store is full."""
        if len(self._voices) >= self._max_voices:
            raise ApiError(
                400, f"the server has {self._max_voices} voices already; delete one", "voice_limit_reached"
            )

    def add(self, model: str, name: str, content: bytes) -> StoredVoice:
        """Stores the content of a voice file. Raises ApiError if the store or the disk is full."""
        number, created = f"voice_{secrets.token_hex(12)}", int(time.time())
        path = self._folder / f"{number}.safetensors"
        metadata = _metadata(content) | {NAME: name, BUNDLE: model, CREATED: str(created)}
        voice = _voice(path, metadata)
        with self._lock:
            self.check_room()
            self._voices[number] = voice  # keeps its place while the file is written
        try:
            write_whole(path, save(load(content), metadata=metadata))
        except VoxportError as error:
            with self._lock:
                del self._voices[number]
            log.error("a voice cannot be stored: %s", error)
            message = "the voice cannot be stored"
            raise ApiError(503, message, "storage_full", "audio_sample", retry_after=30) from None
        return voice

    def delete(self, number: str) -> None:
        """Raises ApiError if there is no such voice."""
        with self._lock:
            voice = self._voices.pop(number, None)
        if voice is None:
            raise ApiError(404, f"no stored voice {number[:50]!r}", "voice_not_found", "voice")
        voice.path.unlink(missing_ok=True)


def _metadata(content: bytes) -> dict[str, str]:
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return dict(header.get("__metadata__", {}))


def _voice(path: Path, metadata: Mapping[str, str]) -> StoredVoice:
    """Raises ValueError or KeyError on metadata that `add` did not write."""
    seconds = float(metadata[SECONDS]) if SECONDS in metadata else None
    created, checkpoint = int(metadata[CREATED]), metadata[CHECKPOINT]
    return StoredVoice(path.stem, metadata[NAME], metadata[BUNDLE], created, path, checkpoint, seconds)


def _read(path: Path) -> StoredVoice | None:
    """None, with a warning, if the file is not one that `add` wrote."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_VOICE_BYTES:
            raise ValueError("not a file of a voice")
        with safe_open(path, framework="numpy") as file:
            return _voice(path, file.metadata() or {})
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        log.warning("%s: damaged, so the voice is not served: %r", path, error)
        return None
