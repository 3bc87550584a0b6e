"""`SpeechToText`: the task of a bundle that transcribes. `runtime.open` returns an implementation."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from runtime.audio.captions import Word


@dataclass(frozen=True)
class TranscriptDelta:
    """Text that has become complete since the last delta, and the words that have."""

    text: str
    words: list[Word]


class SpeechToText(ABC):
    """Transcribes recordings and live streams. Transcriptions are independent and may be interleaved."""

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """Sample rate of the audio in Hz."""

    @property
    @abstractmethod
    def delays_ms(self) -> tuple[int, ...]:
        """Delays of the text behind the audio that the bundle supports, in ms.

        The default is the first for live audio and the last for recordings.
        """

    @abstractmethod
    def check_live(self) -> None:
        """Raises UsageError if the bundle is for recordings only."""

    @abstractmethod
    def transcribe(
        self,
        blocks: Iterable[np.ndarray],
        delay_ms: int | None = None,
        live: bool = False,
        chunk_tokens: int = 1,
        blank_penalty: bool = False,
    ) -> Iterator[TranscriptDelta]:
        """Transcribes blocks of samples float32 [n] of any length, at `sample_rate`.

        A delta is returned as soon as its text is complete. With `live`, the encoder takes `chunk_tokens` *
        80 ms per call; without, as much as a call takes. `blank_penalty` makes text likelier after a long run
        of tokens without text. Raises UsageError at once on a delay or a number of
        tokens that the bundle does not support, and later on a block that is not such an array.
        """
