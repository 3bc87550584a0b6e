"""The prompt of an utterance: the rows of a voice, a prefix that all its prompts share, and the text.

The rows of a voice are input embeddings that replace the [AUDIO] ids of the prefix.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from voxport.bundle.errors import UsageError, VoxportError
from voxport.bundle.manifest import Bundle
from voxport.bundle.tekken import SPEECH_MARKERS, load_tekken, special_id, tekken_path
from voxport.runtime.families.voxtral_tts.decoder import Constants, Prompt, check_room
from voxport.runtime.families.voxtral_tts.voices import choose_voice
from voxport.runtime.speech_request import SpeechRequest
from voxport.runtime.text.cleanup import MAX_TEXT_CHARACTERS, check_text

FRAMES_PER_CHARACTER = 0.68  # English speech, published for Voxtral-TTS


def estimated_frames(text: str) -> float:
    """Frames that the speech of a text usually takes."""
    return FRAMES_PER_CHARACTER * len(text)


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
            special_id(self._tekken, marker, path) for marker in SPEECH_MARKERS
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
        if len(text) > MAX_TEXT_CHARACTERS:
            raise UsageError(
                f"the text has {len(text)} characters, expected at most {MAX_TEXT_CHARACTERS}; split it"
            )
        return [*self._tekken.encode(text, bos=False, eos=False), self._after_text, self._begin_audio]


def open_tokenizer(paths: Sequence[Path]) -> SpeechTokenizer:
    """Raises IntegrityError."""
    return SpeechTokenizer(tekken_path(paths))


class PromptBuilder:
    """Builds prompts for one bundle."""

    def __init__(self, bundle: Bundle, tokenizer: SpeechTokenizer, constants: Constants):
        self._bundle, self._tokenizer, self._constants = bundle, tokenizer, constants
        self._capacity = bundle.component("decode_step").signature.capacity or 0

    def fits_prompt(self, voice: str | None) -> Callable[[str], bool]:
        """A function that returns whether the prompt of a text and its usual speech fit the cache.

        Raises UsageError on an unknown voice.
        """
        rows = len(choose_voice(self._bundle, voice, self._constants.dim))
        fixed = len(self._tokenizer.voice_prefix(rows)) + len(self._constants.extra_ids)

        def fits(text: str) -> bool:
            frames = math.ceil(estimated_frames(text))
            return fixed + len(self._tokenizer.encode(text)) + frames <= self._capacity

        return fits

    def build(self, request: SpeechRequest) -> Prompt:
        """Raises UsageError on a text, voice or length that the bundle cannot speak."""
        text = check_text(request.text)
        if request.instruct:
            raise UsageError("instruct: this model takes no instruction; leave it out", field="instruct")
        if request.sampling:
            raise UsageError("sampling: this model draws no codes; leave it out", field="sampling")
        if request.text_layout:
            raise UsageError("text_layout: this model has one layout; leave it out", field="text_layout")
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
