"""A speech-to-text task that gives a word for each loud 80 ms, or for each loud sound."""

from collections.abc import Callable, Iterator
from typing import Unpack

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.captions import Word
from voxport.runtime.single_stream import SingleStreamBatch
from voxport.runtime.speech_to_text import LiveBatch, SpeechToText, TranscriptDelta, TranscriptionOptions

RATE, BLOCK, LOUD = 16000, 1280, 0.1
HALF_WAVE = 10  # samples of the sound of a word
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def square_wave(count: int, value: float) -> np.ndarray:
    """float64 [count], `value` with changing signs: a sound without an offset."""
    return np.where(np.arange(count) // HALF_WAVE % 2, -value, value)


class LoudWords:
    """Implements `runtime.speech_to_text.Transcription`."""

    def __init__(self, task: "LoudToText") -> None:
        self._task, self._rest = task, np.zeros(0, np.float32)
        self._blocks = self._words = 0
        self._since: int | None = None  # the block in which the current word began

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        self._task.before_feed()
        self._rest = np.concatenate((self._rest, samples))
        while len(self._rest) >= BLOCK:
            block, self._rest = self._rest[:BLOCK], self._rest[BLOCK:]
            yield from self._deltas(bool(np.abs(block).max() > LOUD))

    def finish(self) -> Iterator[TranscriptDelta]:
        yield from self.feed(np.zeros(-len(self._rest) % BLOCK, np.float32))
        yield from self._deltas(False)

    def _deltas(self, is_loud: bool) -> Iterator[TranscriptDelta]:
        if is_loud and self._since is None:
            self._since = self._blocks
        end = self._blocks + is_loud
        self._blocks += 1
        if self._since is not None and not (is_loud and self._task.whole_sounds):
            word, start = NUMBERS[self._words % len(NUMBERS)], 0.08 * self._since
            yield TranscriptDelta(f" {word}", [Word(word, start, start + 0.08 * (end - self._since))])
            self._since, self._words = None, self._words + 1


class LoudToText(SpeechToText):
    """`before_feed` is called before audio is transcribed. With `whole_sounds`, a loud sound is one word."""

    def __init__(self, is_live: bool = True, whole_sounds: bool = False) -> None:
        self._is_live, self.whole_sounds = is_live, whole_sounds
        self.before_feed: Callable[[], object] = lambda: None

    @property
    def sample_rate(self) -> int:
        return RATE

    @property
    def delays_ms(self) -> tuple[int, ...]:
        return (80, 480)

    @property
    def max_chunk_tokens(self) -> int:
        return 100

    def check_live(self) -> None:
        if not self._is_live:
            raise UsageError("live: this bundle is for recordings", field="live")

    @property
    def max_live(self) -> int:
        return 1

    def live_batch(self, slots: int) -> LiveBatch:
        self.check_live()
        return SingleStreamBatch(self.begin)

    def begin(self, **options: Unpack[TranscriptionOptions]) -> LoudWords:
        return LoudWords(self)


class FrenchToText(LoudToText):
    languages = ("fr",)
