"""`VoiceStore`: voices that clients made from recordings, as files of one folder."""

import json
import logging
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from voxport.bundle.bounds import MAX_VOICE_BYTES
from voxport.bundle.errors import UsageError, VoxportError
from voxport.bundle.files import write_whole
from voxport.runtime.serve.errors import ApiError

FILE = re.compile(r"(voice_[0-9a-f]{24})\.safetensors")
NAME, BUNDLE, CREATED = "name", "bundle", "created_at"  # keys of the metadata, besides the keys of the family
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredVoice:
    """A voice of the bundle `model`. The server made its `id`; the client gave it a `name`.

    `created_at` is in seconds of Unix time.
    """

    id: str
    name: str
    model: str
    created_at: int
    path: Path


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

    def of(self, model: str | None = None) -> list[StoredVoice]:
        """The voices of a bundle, or of all."""
        with self._lock:
            return [voice for voice in self._voices.values() if model in (None, voice.model)]

    def path(self, model: str, voice: str) -> Path | None:
        """The file of a voice of a bundle by its id; None if there is none."""
        found = self._voices.get(voice)
        return found.path if found and found.model == model else None

    def check_room(self) -> None:
        """Raises ApiError if the store is full."""
        if len(self._voices) >= self._max_voices:
            raise ApiError(
                400, f"the server has {self._max_voices} voices already; delete one", "voice_limit_reached"
            )

    def add(self, model: str, name: str, content: bytes) -> StoredVoice:
        """Stores the content of a voice file. Raises ApiError if the store or the disk is full."""
        number, created = f"voice_{secrets.token_hex(12)}", int(time.time())
        voice = StoredVoice(number, name, model, created, self._folder / f"{number}.safetensors")
        with self._lock:
            self.check_room()
            self._voices[number] = voice  # keeps its place while the file is written
        try:
            write_whole(voice.path, _with_metadata(content, voice))
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


def _with_metadata(content: bytes, voice: StoredVoice) -> bytes:
    """The content of a voice file, with the fields of `voice` in its metadata."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    own = {NAME: voice.name, BUNDLE: voice.model, CREATED: str(voice.created_at)}
    return save(load(content), metadata=header.get("__metadata__", {}) | own)


def _read(path: Path) -> StoredVoice | None:
    """None, with a warning, if the file is not one that `add` wrote."""
    try:
        if path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_VOICE_BYTES:
            raise ValueError("not a file of a voice")
        with safe_open(path, framework="numpy") as file:
            found = file.metadata() or {}
        return StoredVoice(path.stem, found[NAME], found[BUNDLE], int(found[CREATED]), path)
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        log.warning("%s: damaged, so the voice is not served: %r", path, error)
        return None
