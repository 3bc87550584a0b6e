"""Voices of a bundle: rows of input embeddings that replace the [AUDIO] ids of a prompt."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bundle.bundle import Bundle
from bundle.errors import IntegrityError, UsageError
from bundle.manifest import VOICE_KEY

DEFAULT = "neutral_female"
AUDIO = {".wav", ".flac", ".mp3", ".ogg", ".m4a", ".opus", ".aac", ".pcm"}


def choose_voice(bundle: Bundle, asked: str | None, dim: int) -> np.ndarray:
    """Rows float32 [N, dim] of a voice by name or file. Raises UsageError that lists the voices."""
    names = list(bundle.manifest.voices)
    if asked is None:
        if not names:
            raise UsageError(
                f"voice: {bundle.folder} has none; give a voice FILE.safetensors with key {VOICE_KEY!r}",
                field="voice",
            )
        return load_voice(bundle, DEFAULT if DEFAULT in names else names[0], dim)
    if asked in names:
        return load_voice(bundle, asked, dim)
    path = Path(asked)
    if path.suffix.lower() in AUDIO:
        raise UsageError(
            f"voice {asked}: a voice cannot be cloned from audio, because the published checkpoint has no "
            f"codec encoder; give one of {', '.join(names)}",
            field="voice",
        )
    if path.suffix == ".safetensors":
        try:
            return _read(path, dim)
        except IntegrityError as error:
            raise UsageError(f"voice {error}", field="voice") from None
    there_are = ", ".join(names) or "none in this bundle"
    raise UsageError(f"voice {asked}: unknown voice; there are {there_are}", field="voice")


def count_rows(bundle: Bundle, dim: int) -> dict[str, int]:
    """Rows of each of the bundle's own voices. Raises IntegrityError."""
    return {name: len(load_voice(bundle, name, dim)) for name in bundle.manifest.voices}


def load_voice(bundle: Bundle, name: str, dim: int) -> np.ndarray:
    """Rows float32 [N, dim] of one of the bundle's own voices. Raises IntegrityError."""
    return _read(bundle.folder / bundle.manifest.voices[name], dim)


def _read(path: Path, dim: int) -> np.ndarray:
    try:
        rows = load_file(path).get(VOICE_KEY)
    except (OSError, SafetensorError, ValueError) as error:
        raise IntegrityError(f"{path}: not a readable safetensors file ({error})") from None
    if rows is None or rows.ndim != 2 or rows.shape[1] != dim or rows.dtype != np.float32 or not len(rows):
        found = "no such key" if rows is None else f"{rows.dtype} {list(rows.shape)}"
        raise IntegrityError(f"{path}: key {VOICE_KEY!r}: {found}; expected float32 [N, {dim}]")
    if not np.isfinite(rows).all():
        raise IntegrityError(f"{path}: key {VOICE_KEY!r} holds values that are not finite")
    return rows
