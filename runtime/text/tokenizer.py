"""Text to the token ids of a speech prompt, and token ids to the bytes of text."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bundle.errors import IntegrityError, UsageError, VoxportError

LONGEST_TEXT = (
    500_000  # characters, far above any context; the splitting pattern overflows on a million blanks in a row
)
OBJECT_FORM = "expected the object form of tekken.json (config, vocab, special_tokens)"
REMEDY = "take the file from the checkpoint and export again"


class SpeechTokenizer:
    """The byte-pair tokenizer of a tekken.json and its speech markers.

    Raises IntegrityError where the file is missing, broken, of the older bare-array form, or without speech markers.
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
        """The prompt: 1, 25, 24 per voice row, 36, the text, 35, 25; voice_rows + text ids + 5 in all.

        Equal to mistral_common's `encode_speech_request`, but that the number of placeholders is that of the rows the
        voice really has, whatever tekken.json lists. Markers typed in `text` stay text.
        Raises UsageError where the text is too long to be split, VoxportError where there is no voice row.
        """
        if voice_rows < 1:
            raise VoxportError(
                f"a voice of {voice_rows} rows cannot lead a prompt; expected at least 1, name another voice"
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
        if len(text) > LONGEST_TEXT:
            raise UsageError(
                f"the text has {len(text)} characters, at most {LONGEST_TEXT} can be read at once; split it"
            )
        return list(self._tekken.encode(text, bos=False, eos=False))

    def _marker(self, token: str) -> int:
        try:
            return int(self._tekken.get_special_token(token))
        except ValueError:
            raise IntegrityError(
                f"{self._path}: has no token {token}, expected the tokenizer of a speech model; {REMEDY}"
            ) from None


def load_pieces(path: Path) -> Callable[[int], bytes]:
    """The bytes of each token of a tekken.json; of specials none. Raises IntegrityError as `SpeechTokenizer` does, and on an id that it
    does not have."""
    tekken = _load(path)

    def piece(token: int) -> bytes:
        try:
            return bytes(tekken.id_to_byte_piece(token))
        except (KeyError, IndexError, OverflowError, ValueError):
            raise IntegrityError(f"{path}: has no token {token}, which the model gave; {REMEDY}") from None

    return piece


def _load(path: Path) -> Any:
    """A mistral_common Tekkenizer, typed Any because that package is imported only here."""
    logging.getLogger("mistral_common").setLevel(logging.ERROR)
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    try:
        return Tekkenizer.from_file(path)
    except Exception as error:  # it asserts, and lets KeyError, TypeError and those of its parts through
        _check_form(path)  # only now: the file is large
        raise IntegrityError(f"{path}: {_reason(error)}; {REMEDY}") from None


def _check_form(path: Path) -> None:
    """What the library would report as a bare TypeError or KeyError, said in words."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IntegrityError(f"{path}: missing, {OBJECT_FORM}; {REMEDY}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise IntegrityError(f"{path}: cannot be read as JSON ({error}), {OBJECT_FORM}; {REMEDY}") from None
    if isinstance(content, list):
        raise IntegrityError(f"{path}: holds a bare array, the older form, {OBJECT_FORM}; {REMEDY}")
    if not isinstance(content, dict):
        raise IntegrityError(f"{path}: holds a {type(content).__name__}, {OBJECT_FORM}; {REMEDY}")
    for key, kind in (("config", dict), ("vocab", list)):
        if not isinstance(content.get(key), kind):
            raise IntegrityError(f"{path}: {key} is missing or no {kind.__name__}, {OBJECT_FORM}; {REMEDY}")


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"lacks the key {error}"
    if isinstance(error, AssertionError):  # its message may be the whole vocabulary
        return "vocab and special_tokens do not have the ranks and sizes that config says"
    return f"not a tokenizer ({' '.join(str(error).split())[:200]})"
