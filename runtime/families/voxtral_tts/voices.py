"""Voices of a bundle, and voice files of the user."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from voxport.bundle.bounds import MAX_VOICE_BYTES, MAX_VOICE_ROWS
from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.manifest import VOICE_KEY, Bundle
from voxport.bundle.names import find_name
from voxport.runtime.audio.files import SOUNDS

DEFAULT_VOICE = "neutral_female"
LANGUAGES = ("ar", "de", "en", "es", "fr", "hi", "it", "nl", "pt")  # voices of other names speak English
DTYPES = ("F32", "F16", "BF16")  # as safetensors names them


def choose_voice(bundle: Bundle, name: str | None, dim: int) -> np.ndarray:
    """Rows float32 [N, dim] of a voice by name or file. Raises UsageError that lists the voices."""
    names = list(bundle.manifest.voices)
    name = find_name(name or default_voice(bundle), names)
    if name in names:
        return read_voice(bundle.folder / bundle.manifest.voices[name], dim)
    path = Path(name)
    if path.suffix.lower() in SOUNDS:
        raise UsageError(
            f"voice {name}: a voice cannot be cloned from audio, because the published checkpoint has no "
            f"codec encoder; give one of {', '.join(names)}",
            field="voice",
        )
    if path.suffix == ".safetensors":
        try:
            return read_voice(path, dim)
        except IntegrityError as error:
            raise UsageError(f"voice {error}", field="voice") from None
    listed = ", ".join(names) or "none in this bundle"
    raise UsageError(f"voice {name}: unknown voice; there are {listed}", field="voice")


def language_of_voice(bundle: Bundle, voice: str | None) -> str:
    """ISO 639 code of the language that the name of a published voice begins with, as in fr_male."""
    language = Path(voice or default_voice(bundle)).name.lower().partition("_")[0]
    return language if language in LANGUAGES else "en"


def count_rows(bundle: Bundle, dim: int) -> dict[str, int]:
    """Rows of each of the bundle's own voices. Raises IntegrityError."""
    return {name: len(read_voice(bundle.folder / path, dim)) for name, path in bundle.manifest.voices.items()}


def default_voice(bundle: Bundle) -> str:
    """Raises UsageError if the bundle has no voice."""
    names = list(bundle.manifest.voices)
    if not names:
        raise UsageError(
            f"voice: {bundle.folder} has none; give a voice FILE.safetensors with key {VOICE_KEY!r}",
            field="voice",
        )
    return DEFAULT_VOICE if DEFAULT_VOICE in names else names[0]


def read_voice(path: Path, dim: int) -> np.ndarray:
    """Rows float32 [N, dim] of a voice file in float32, float16 or bfloat16.

    Raises IntegrityError on any other file.
    """
    if not path.is_file():  # opening a pipe would wait for ever
        raise IntegrityError(f"{path}: not a file; give a voice FILE.safetensors with key {VOICE_KEY!r}")
    if (size := path.stat().st_size) > MAX_VOICE_BYTES:
        raise IntegrityError(f"{path}: {size} bytes, expected at most {MAX_VOICE_BYTES} for a voice")
    try:
        tensors = dict(deserialize(path.read_bytes()))
    except (OSError, SafetensorError, ValueError) as error:
        raise IntegrityError(f"{path}: not a readable safetensors file ({error})") from None
    if VOICE_KEY not in tensors:
        raise IntegrityError(f"{path}: key {VOICE_KEY!r}: no such key; expected float32 [N, {dim}]")
    dtype, shape = tensors[VOICE_KEY]["dtype"], tensors[VOICE_KEY]["shape"]
    fits = len(shape) == 2 and shape[1] == dim and 1 <= shape[0] <= MAX_VOICE_ROWS
    if not fits or dtype not in DTYPES:
        raise IntegrityError(
            f"{path}: key {VOICE_KEY!r}: {dtype} {shape}; "
            f"expected {', '.join(DTYPES)} [N, {dim}] with 1 to {MAX_VOICE_ROWS} rows"
        )
    rows = _to_float32(tensors[VOICE_KEY]["data"], dtype).reshape(shape)
    if not np.isfinite(rows).all():
        raise IntegrityError(f"{path}: key {VOICE_KEY!r} holds values that are not finite")
    return rows


def _to_float32(data: bytes, dtype: str) -> np.ndarray:
    if dtype == "BF16":  # NumPy has no bfloat16: the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)
