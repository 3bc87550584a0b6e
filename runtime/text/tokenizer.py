"""Text to the token ids of a speech prompt, and token ids to the bytes of text, by a tekken.json."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bundle.errors import IntegrityError, UsageError, VoxportError

TEKKEN = "tekken.json"
MAX_TEXT = (
    500_000  # characters, above any context; the splitting pattern overflows on a million spaces in a row
)
OBJECT_FORM = "expected the object form of tekken.json (config, vocab, special_tokens)"
REMEDY = "take the file from the checkpoint and export again"


def find_tekken(paths: Sequence[Path]) -> Path:
    """The tekken.json among tokenizer files. Raises IntegrityError."""
    for path in paths:
        if path.name == TEKKEN:
            return path
    found = ", ".join(path.name for path in paths) or "none"
    raise IntegrityError(f"tokenizer files: {found}; expected {TEKKEN}; {REMEDY}")


class SpeechTokenizer:
    """The byte-pair tokenizer of a tekken.json and its speech markers.

    Raises IntegrityError if the file is missing, damaged, of the older bare-array form, or without speech
    markers.
    """

    def __init__(self, path: Path):
        self._path = path
        self._tekken = _load(path)
        self._begin = self._marker("<s>")
        self._audio = self._marker("[AUDIO]")
        self._begin_audio = self._marker("[BEGIN_AUDIO]")
        self._before_text = self._marker("[NEXT_AUDIO_TEXT]")
        self._after_text = self._marker("[REPEAT_AUDIO_TEXT]")

    def encode(self, text: str, voice_rows: int) -> list[int]:
        """The ids of a prompt: 1, 25, 24 per voice row, 36, the text, 35, 25.

        Equals `encode_speech_request` of mistral_common, except that the number of placeholders is
        `voice_rows` and not the number that tekken.json lists. Markers typed in `text` are encoded as text.
        Raises UsageError if the text is too long to be split, VoxportError without a voice row.
        """
        if voice_rows < 1:
            raise VoxportError(
                f"a prompt with a voice of {voice_rows} rows; expected at least 1, name another voice"
            )
        voice = [self._audio] * voice_rows
        return [
            self._begin,
            self._begin_audio,
            *voice,
            self._before_text,
            *self._ids(text),
            self._after_text,
            self._begin_audio,
        ]

    def _ids(self, text: str) -> list[int]:
        if len(text) > MAX_TEXT:
            raise UsageError(f"the text has {len(text)} characters, expected at most {MAX_TEXT}; split it")
        return list(self._tekken.encode(text, bos=False, eos=False))

    def _marker(self, token: str) -> int:
        try:
            return int(self._tekken.get_special_token(token))
        except ValueError:
            raise IntegrityError(
                f"{self._path}: has no token {token}, expected the tokenizer of a speech model; {REMEDY}"
            ) from None


def load_token_bytes(path: Path) -> Callable[[int], bytes]:
    """A function from token ids to bytes of text, which are empty for special tokens.

    Raises IntegrityError like `SpeechTokenizer`; the function raises it on an unknown id.
    """
    tekken = _load(path)

    def token_bytes(token: int) -> bytes:
        try:
            return bytes(tekken.id_to_byte_piece(token))
        except (KeyError, IndexError, OverflowError, ValueError):
            raise IntegrityError(
                f"{path}: has no token {token}, which the model returned; {REMEDY}"
            ) from None

    return token_bytes


def _load(path: Path) -> Any:
    """A mistral_common Tekkenizer, typed Any because the package is imported only here.

    Raises IntegrityError.
    """
    logging.getLogger("mistral_common").setLevel(logging.ERROR)
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    try:
        return Tekkenizer.from_file(path)
    except Exception as error:  # AssertionError, KeyError, TypeError, and errors of the packages it uses
        _check_form(path)  # after a failure only, because the file is large
        raise IntegrityError(f"{path}: {_reason(error)}; {REMEDY}") from None


def _check_form(path: Path) -> None:
    """Raises an IntegrityError that explains a form on which the library raises TypeError or KeyError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IntegrityError(f"{path}: missing, {OBJECT_FORM}; {REMEDY}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: cannot be read as JSON ({error}), {OBJECT_FORM}; {REMEDY}") from None
    if isinstance(content, list):
        raise IntegrityError(f"{path}: is a bare array, the older form, {OBJECT_FORM}; {REMEDY}")
    if not isinstance(content, dict):
        raise IntegrityError(f"{path}: is of type {type(content).__name__}, {OBJECT_FORM}; {REMEDY}")
    for key, kind in (("config", dict), ("vocab", list)):
        if not isinstance(content.get(key), kind):
            raise IntegrityError(
                f"{path}: {key} is missing or not a {kind.__name__}, {OBJECT_FORM}; {REMEDY}"
            )


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"lacks the key {error}"
    if isinstance(error, AssertionError):  # its message may be the whole vocabulary
        return "ranks and sizes of vocab and special_tokens do not match config"
    return f"not a tokenizer ({' '.join(str(error).split())[:200]})"
