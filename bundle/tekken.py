"""Reads a tekken.json: special tokens, and the bytes of token ids."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.bounds import MAX_SPECIAL_TOKENS, MAX_TOKENIZER_BYTES
from voxport.bundle.errors import IntegrityError, UsageError

if TYPE_CHECKING:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

FILE = "tekken.json"
SPEECH_MARKERS = ("<s>", "[AUDIO]", "[BEGIN_AUDIO]", "[NEXT_AUDIO_TEXT]", "[REPEAT_AUDIO_TEXT]")
OBJECT_FORM = "expected the object form of tekken.json (config, vocab, special_tokens)"
REMEDY = "take the file of the published checkpoint, and export again"


def tekken_path(paths: Sequence[Path]) -> Path:
    """The tekken.json among the tokenizer files of a bundle or checkpoint.

    Raises IntegrityError without one.
    """
    for path in paths:
        if path.name == FILE:
            return path
    listed = ", ".join(map(str, paths)) or "no file"
    raise IntegrityError(f"tokenizer: {listed}; expected {FILE}; {REMEDY}")


def special_id(tekken: Tekkenizer, token: str, path: Path) -> int:
    """The id of a special token. Raises IntegrityError if the file at `path` lacks it."""
    try:
        return int(tekken.get_special_token(token))
    except ValueError:
        raise IntegrityError(
            f"{path}: has no token {token}, expected the tokenizer of a speech model; {REMEDY}"
        ) from None


def load_pieces(path: Path) -> Callable[[int], bytes]:
    """The function from an id to the bytes of its token; special tokens have none. Raises IntegrityError as
    `load_tekken` does.

    The function raises IntegrityError on an id that the file lacks.
    """
    tekken = load_tekken(path)

    def piece(token: int) -> bytes:
        try:
            return bytes(tekken.id_to_byte_piece(token))
        except (KeyError, IndexError, OverflowError, ValueError):
            raise IntegrityError(f"{path}: has no token {token}, which the model chose; {REMEDY}") from None

    return piece


def load_tekken(path: Path) -> Tekkenizer:
    """The tokenizer of a tekken.json.

    Raises IntegrityError if the file is missing, broken, too large, or of the bare-array form.
    """
    logging.getLogger("mistral_common").setLevel(logging.ERROR)
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    _check_form(path)
    try:
        return Tekkenizer.from_file(path)
    except Exception as error:  # it asserts, and lets KeyError, TypeError and errors of its parts through
        reason = f"not a tokenizer ({' '.join(str(error).split())[:200]})"
        if isinstance(error, KeyError):
            reason = f"lacks the key {error}"
        if isinstance(error, AssertionError):  # its message may be the whole vocabulary
            reason = "vocab and special_tokens do not have the ranks and sizes that config says"
        raise IntegrityError(f"{path}: {reason}; {REMEDY}") from None


def _check_form(path: Path) -> None:
    """Raises IntegrityError that explains what the library would report as a bare TypeError or KeyError, or
    would take all memory for.
    """
    content = _read(path)
    if isinstance(content, list):
        raise IntegrityError(f"{path}: holds a bare array, the older form, {OBJECT_FORM}; {REMEDY}")
    if not isinstance(content, dict):
        raise IntegrityError(f"{path}: holds a {type(content).__name__}, {OBJECT_FORM}; {REMEDY}")
    for key, kind in (("config", dict), ("vocab", list)):
        if not isinstance(content.get(key), kind):
            raise IntegrityError(f"{path}: {key} is missing or no {kind.__name__}, {OBJECT_FORM}; {REMEDY}")
    special = content["config"].get("default_num_special_tokens")
    if not isinstance(special, int) or not 0 <= special <= MAX_SPECIAL_TOKENS:
        raise IntegrityError(
            f"{path}: config.default_num_special_tokens is {str(special)[:40]}, "
            f"expected at most {MAX_SPECIAL_TOKENS}; {REMEDY}"
        )


def _read(path: Path) -> object:
    try:
        if (size := path.stat().st_size) > MAX_TOKENIZER_BYTES:
            raise IntegrityError(f"{path}: {size} bytes, expected at most {MAX_TOKENIZER_BYTES}; {REMEDY}")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IntegrityError(f"{path}: missing, {OBJECT_FORM}; {REMEDY}") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: cannot be read as JSON ({error}), {OBJECT_FORM}; {REMEDY}") from None
