"""Speech to text with a Voxtral-Realtime bundle."""

import codecs
import logging
import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from bundle.errors import UsageError
from runtime.audio.captions import Word
from runtime.engines.base import Engine
from runtime.families.voxtral_realtime.decoder import ENCODER, Constants, DecodeOptions, StreamingDecoder
from runtime.speech_to_text import SpeechToText, TranscriptDelta

LANGUAGES = ("ar", "de", "en", "es", "fr", "hi", "it", "ja", "ko", "nl", "pt", "ru", "zh")
MAX_PADS = 3  # in a row; then a word ends
MAX_WORD_CHARACTERS = 80  # for scripts without spaces
log = logging.getLogger(__name__)

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class VoxtralSpeechToText(SpeechToText):
    """Each transcription uses a stream of its own on the shared engine."""

    def __init__(
        self, engine: Engine, constants: Constants, token_bytes: Callable[[int], bytes], is_live: bool
    ):
        """`is_live`: whether the bundle can encode live streams."""
        self._engine, self._constants, self._token_bytes = engine, constants, token_bytes
        self._is_live = is_live
        self._is_warm = False

    @property
    def sample_rate(self) -> int:
        return self._constants.sample_rate

    @property
    def delays_ms(self) -> tuple[int, ...]:
        return self._constants.delays_ms

    @property
    def languages(self) -> tuple[str, ...]:
        return LANGUAGES

    @property
    def max_chunk_tokens(self) -> int:
        return self._engine.stream().signatures[ENCODER].dims["T"][1]

    def check_live(self) -> None:
        if not self._is_live:
            raise UsageError(
                "live: this bundle is for recordings; export it with the option streaming", field="live"
            )

    def begin(
        self,
        delay_ms: int | None = None,
        live: bool = False,
        chunk_tokens: int | None = None,
        blank_penalty: bool = False,
    ) -> "VoxtralTranscription":
        delay = self._constants.delay_index(delay_ms, live)
        if live:
            self.check_live()
            self._warm_up()
        chunk = chunk_tokens or (1 if live else None)
        options = DecodeOptions(delay, chunk, blank_penalty=blank_penalty)
        decoder = StreamingDecoder(self._engine.stream(), self._constants, options)
        return VoxtralTranscription(decoder, self._constants, self._token_bytes)

    def _warm_up(self) -> None:
        """Opens every graph before the first sample is taken.

        It takes seconds at the published size, once.
        """
        if self._is_warm:
            return
        constants = self._constants
        decoder = StreamingDecoder(self._engine.stream(), constants, DecodeOptions(chunk_tokens=1))
        for _ in decoder.feed(np.zeros((constants.delays[0] + 3) * constants.samples_per_token, np.float32)):
            pass
        self._is_warm = True
        log.info("ready for live audio")


class VoxtralTranscription:
    """The tokens of one stream of audio, as text. Implements `runtime.speech_to_text.Transcription`."""

    def __init__(self, decoder: StreamingDecoder, constants: Constants, token_bytes: Callable[[int], bytes]):
        self._decoder, self._transcript = decoder, Transcript(constants, token_bytes)

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        yield from self._transcript.deltas(self._decoder.feed(samples))

    def finish(self) -> Iterator[TranscriptDelta]:
        yield from self._transcript.deltas(self._decoder.finish())
        yield TranscriptDelta(self._transcript.finish(), self._transcript.take_words())


class Transcript:
    """The text and the words of one stream.

    A character may take several tokens. A word begins at [STREAMING_WORD]. It ends at the next one, after
    `MAX_PADS` of [STREAMING_PAD], or when it reaches `MAX_WORD_CHARACTERS`.

    Token i belongs to the audio from i * 80 ms to (i + 1) * 80 ms. The times of a word are those of its
    marker and of its last token. The tokens of a long word are due after the word was spoken, so its end may
    be late.
    """

    def __init__(self, constants: Constants, token_bytes: Callable[[int], bytes]):
        """`token_bytes(id)` returns the bytes of a token."""
        self._constants, self._token_bytes = constants, token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._tokens = self._pads = 0  # all tokens, and pads in a row
        self._word: Word | None = None  # begun and not ended
        self._words: list[Word] = []

    def add(self, token: int) -> str:
        """The text that the next token completes; often empty."""
        constants, start = self._constants, self._seconds
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

    def finish(self) -> str:
        """A replacement character if the last character is incomplete, else nothing. Ends the last word."""
        text = self._append(self._utf8.decode(b"", final=True), self._seconds)
        self._end_word()
        return text

    def take_words(self) -> list[Word]:
        """The words that ended since the last call."""
        words, self._words = self._words, []
        return words

    @property
    def _seconds(self) -> float:
        """Start of the next token."""
        return self._tokens * self._constants.seconds_per_token

    def _append(self, text: str, start: float) -> str:
        """Adds the text of a token that starts at `start` to the current word, and returns it.

        A terminal obeys control characters, so they are replaced.
        """
        text = CONTROL.sub("\ufffd", text)
        if text:
            word = self._word or Word("", start, start)
            self._word = Word(word.text + text, word.start, start + self._constants.seconds_per_token)
            if len(self._word.text) >= MAX_WORD_CHARACTERS:
                self._end_word()
        return text

    def _end_word(self) -> None:
        if self._word and self._word.text.strip():
            self._words.append(Word(self._word.text.strip(), self._word.start, self._word.end))
        self._word = None
