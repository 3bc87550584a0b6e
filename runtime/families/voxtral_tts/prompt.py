"""The prompt of an utterance: a voice's prefix, which all its prompts share, and the text."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bundle.bundle import Bundle
from bundle.errors import UsageError
from runtime.families.voxtral_tts.constants import Constants
from runtime.families.voxtral_tts.tokenizer import SpeechTokenizer
from runtime.families.voxtral_tts.voices import choose_voice
from runtime.text.cleanup import check_text, clean_text
from runtime.text_to_speech import SpeechRequest

VOICE_START = 2  # position of the first voice row: behind [BOS] and [BEGIN_AUDIO]


@dataclass(frozen=True)
class Prompt:
    """`prefix` int64 [V] has an [AUDIO] id for each row of `voice` float32 [N, dim]; `text` int64 [T] follows
    it.
    """

    prefix: np.ndarray
    voice: np.ndarray
    text: np.ndarray

    @cached_property
    def voice_positions(self) -> np.ndarray:
        """Positions in `prefix` whose embeddings are the rows of `voice`: int64 [N]."""
        return np.arange(VOICE_START, VOICE_START + len(self.voice))


class PromptBuilder:
    """Builds prompts for one bundle."""

    def __init__(self, bundle: Bundle, tokenizer: SpeechTokenizer, constants: Constants):
        self._bundle, self._tokenizer, self._constants = bundle, tokenizer, constants
        self._capacity = bundle.component("decode_step").signature.capacity or 0

    def build(self, request: SpeechRequest) -> Prompt:
        """Raises UsageError on a text, voice or length that the bundle cannot speak."""
        text = check_text(clean_text(request.text) if request.clean_text else request.text)
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


def check_room(rows: int, capacity: int) -> None:
    """Raises UsageError where a prompt of `rows` rows leaves no room for a frame in the cache."""
    if rows >= capacity:
        raise UsageError(
            f"text: its prompt of {rows} rows leaves no room in a cache of {capacity}; "
            "shorten the text or export with a larger cache length"
        )
