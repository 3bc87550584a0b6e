"""The prompt of an utterance: the rows of a voice, a prefix that all its prompts share, and the text.

The rows of a voice are input embeddings that replace the [AUDIO] ids of the prefix.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from bundle.errors import IntegrityError, UsageError, VoxportError
from bundle.manifest import VOICE_KEY, Bundle
from runtime.families.voxtral_tts.decoder import Constants, Prompt, check_room
from runtime.text.cleanup import check_text
from runtime.text.tokenizer import load_tekken, special_id, tekken_path
from runtime.text_to_speech import FRAMES_PER_CHARACTER, SpeechRequest

DEFAULT_VOICE = "neutral_female"
LANGUAGES = ("ar", "de", "es", "fr", "hi", "it", "nl", "pt")  # voices of other names speak English
AUDIO = {".wav", ".flac", ".mp3", ".ogg", ".m4a", ".opus", ".aac", ".pcm"}
# Characters, far above any context. The splitting pattern overflows on a million blanks in a row.
MAX_TEXT = 500_000


def choose_voice(bundle: Bundle, asked: str | None, dim: int) -> np.ndarray:
    """Rows float32 [N, dim] of a voice by name or file. Raises UsageError that lists the voices."""
    names = list(bundle.manifest.voices)
    asked = asked or _default_voice(bundle)
    if asked in names:
        return _read(bundle.folder / bundle.manifest.voices[asked], dim)
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
    listed = ", ".join(names) or "none in this bundle"
    raise UsageError(f"voice {asked}: unknown voice; there are {listed}", field="voice")


def language_of_voice(bundle: Bundle, voice: str | None) -> str:
    """ISO 639 code of the language that the name of a published voice begins with, as in fr_male."""
    language = Path(voice or _default_voice(bundle)).name.partition("_")[0]
    return language if language in LANGUAGES else "en"


def _default_voice(bundle: Bundle) -> str:
    names = list(bundle.manifest.voices)
    if not names:
        raise UsageError(
            f"voice: {bundle.folder} has none; give a voice FILE.safetensors with key {VOICE_KEY!r}",
            field="voice",
        )
    return DEFAULT_VOICE if DEFAULT_VOICE in names else names[0]


def count_rows(bundle: Bundle, dim: int) -> dict[str, int]:
    """Rows of each of the bundle's own voices. Raises IntegrityError."""
    return {name: len(_read(bundle.folder / path, dim)) for name, path in bundle.manifest.voices.items()}


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


class SpeechTokenizer:
    """The byte-pair tokenizer of a tekken.json and its speech markers.

    `voice_prefix` + `encode` equal mistral_common's `encode_speech_request`, except that the number of
    [AUDIO] placeholders is the number of voice rows, not the number that tekken.json lists for the voice.
    """

    def __init__(self, path: Path):
        """Raises IntegrityError on a missing or broken file, the older bare-array form, or a missing speech
        marker.
        """
        self._tekken = load_tekken(path)
        self._begin, self._audio, self._begin_audio, self._before_text, self._after_text = (
            special_id(self._tekken, marker, path)
            for marker in ("<s>", "[AUDIO]", "[BEGIN_AUDIO]", "[NEXT_AUDIO_TEXT]", "[REPEAT_AUDIO_TEXT]")
        )

    def voice_prefix(self, rows: int) -> list[int]:
        """[BOS] [BEGIN_AUDIO], an [AUDIO] for each voice row, [NEXT_AUDIO_TEXT].

        Raises VoxportError without a row.
        """
        if rows < 1:
            raise VoxportError(
                f"a voice of {rows} rows cannot start a prompt; expected at least 1 row, name another voice"
            )
        return [self._begin, self._begin_audio, *[self._audio] * rows, self._before_text]

    def encode(self, text: str) -> list[int]:
        """The ids of the text, [REPEAT_AUDIO_TEXT] [BEGIN_AUDIO]. Markers in `text` are read as text.

        Raises UsageError on a text that is too long to tokenize.
        """
        if len(text) > MAX_TEXT:
            raise UsageError(f"the text has {len(text)} characters, expected at most {MAX_TEXT}; split it")
        return [*self._tekken.encode(text, bos=False, eos=False), self._after_text, self._begin_audio]


def open_tokenizer(paths: Sequence[Path]) -> SpeechTokenizer:
    """Raises IntegrityError."""
    return SpeechTokenizer(tekken_path(paths))


class PromptBuilder:
    """Builds prompts for one bundle."""

    def __init__(self, bundle: Bundle, tokenizer: SpeechTokenizer, constants: Constants):
        self._bundle, self._tokenizer, self._constants = bundle, tokenizer, constants
        self._capacity = bundle.component("decode_step").signature.capacity or 0

    def room(self, voice: str | None) -> Callable[[str], bool]:
        """A function that tells whether the prompt of a text and its usual speech fit the cache.

        Raises UsageError on an unknown voice.
        """
        rows = len(choose_voice(self._bundle, voice, self._constants.dim))
        fixed = len(self._tokenizer.voice_prefix(rows)) + len(self._constants.extra_ids)

        def fits(text: str) -> bool:
            frames = math.ceil(FRAMES_PER_CHARACTER * len(text))
            return fixed + len(self._tokenizer.encode(text)) + frames <= self._capacity

        return fits

    def build(self, request: SpeechRequest) -> Prompt:
        """Raises UsageError on a text, voice or length that the bundle cannot speak."""
        text = check_text(request.text)
        voice = choose_voice(self._bundle, request.voice, self._constants.dim)
        prefix, ids = self._tokenizer.voice_prefix(len(voice)), self._tokenizer.encode(text)
        highest, size = max(*prefix, *ids), self._constants.vocab_size
        if highest >= size:
            raise UsageError(
                f"{self._bundle.folder}: the tokenizer gives id {highest}, the model has {size} ids; "
                "export the bundle again with the tokenizer of its checkpoint"
            )
        check_room(len(prefix) + len(ids) + len(self._constants.extra_ids), self._capacity)
        return Prompt(np.array(prefix, np.int64), voice, np.array(ids, np.int64))
