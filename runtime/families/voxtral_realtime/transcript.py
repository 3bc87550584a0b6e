"""`Transcript`: the text and the words of one stream of tokens."""

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from math import inf

from voxport.bundle.constants.voxtral_realtime import RealtimeConstants
from voxport.runtime.audio.captions import Word
from voxport.runtime.speech_to_text import TranscriptDelta

MAX_PADS = 3  # in a row; then a word ends
MAX_WORD_CHARACTERS = 80  # for scripts without spaces
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Transcript:
    """The text and the words of one stream.

    A character may take several tokens. A word begins at [STREAMING_WORD]. It ends at the next one, after
    `MAX_PADS` of [STREAMING_PAD], or when it reaches `MAX_WORD_CHARACTERS`.

    Token i belongs to the audio from i * 80 ms to (i + 1) * 80 ms. The times of a word are the times of its
    marker and of its last token. The tokens of a long word are due after the word was spoken, so its end may
    be late. Tokens of the silence behind the audio have the times of its last 80 ms.
    """

    def __init__(self, constants: RealtimeConstants, token_bytes: Callable[[int], bytes]):
        """`token_bytes(id)` returns the bytes of a token."""
        self._constants, self._token_bytes = constants, token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._tokens = self._pads = 0  # all tokens, and pads in a row
        self._length_s = inf  # length of the audio, once it has ended
        self._word: Word | None = None  # begun and not ended
        self._words: list[Word] = []

    def add(self, token: int) -> str:
        """The text that the next token completes; often empty."""
        constants, start = self._constants, self._next_start
        self._tokens += 1
        self._pads = self._pads + 1 if token == constants.pad_id else 0
        if token >= constants.first_text_id:
            return self._append(self._utf8.decode(self._token_bytes(token)), start)
        if token == constants.word_id or self._pads == MAX_PADS:
            self._end_word()
        if token == constants.word_id:
            self._word = Word("", start, start)
        return ""

    def deltas(self, tokens: Iterable[int]) -> Iterator[TranscriptDelta]:
        """Yields the text and the words that the next tokens complete."""
        for token in tokens:
            delta = TranscriptDelta(self.add(token), self.take_words())
            if delta.text or delta.words:
                yield delta

    def end_audio(self, seconds: float) -> None:
        """The audio has `seconds`. Called before the tokens of the silence behind it."""
        self._length_s = seconds

    def finish(self) -> str:
        """A replacement character if the last character is incomplete, else nothing. Ends the last word."""
        text = self._append(self._utf8.decode(b"", final=True), self._next_start)
        self._end_word()
        return text

    def end(self) -> TranscriptDelta:
        """The last delta, after the last token."""
        return TranscriptDelta(self.finish(), self.take_words())

    def take_words(self) -> list[Word]:
        """The words that ended since the last call."""
        words, self._words = self._words, []
        return words

    @property
    def _next_start(self) -> float:
        """Start of the next token."""
        size = self._constants.seconds_per_token
        return max(0.0, min(self._tokens * size, self._length_s - size))

    @property
    def _last_end(self) -> float:
        """End of the last token."""
        return min(self._tokens * self._constants.seconds_per_token, self._length_s)

    def _append(self, text: str, start: float) -> str:
        """Adds the text of the last token, which starts at `start`, to the current word, and returns it.

        Control characters would change a terminal, so they are replaced.
        """
        text = CONTROL.sub("\ufffd", text)
        if text:
            word = self._word or Word("", start, start)
            self._word = Word(word.text + text, word.start, self._last_end)
            if len(self._word.text) >= MAX_WORD_CHARACTERS:
                self._end_word()
        return text

    def _end_word(self) -> None:
        if self._word and self._word.text.strip():
            self._words.append(Word(self._word.text.strip(), self._word.start, self._word.end))
        self._word = None
