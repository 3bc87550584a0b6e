"""`SpeechToText`: the task of a bundle that transcribes. `voxport.open` returns an implementation."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import chain

import numpy as np

from voxport.runtime.transcription import LiveBatch, TranscriptDelta, Transcription


class SpeechToText(ABC):
    """Transcribes recordings and live streams. Transcriptions are independent and may be interleaved."""

    languages: tuple[str, ...] = ("en",)  # codes of ISO 639 of those that the model transcribes

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

    @property
    @abstractmethod
    def max_chunk_tokens(self) -> int:
        """Tokens of 80 ms of audio that one call of the encoder takes, at most."""

    @abstractmethod
    def check_live(self) -> None:
        """Raises UsageError if the bundle is for recordings only."""

    @abstractmethod
    def begin(
        self,
        delay_ms: int | None = None,
        live: bool = False,
        chunk_tokens: int | None = None,
        blank_penalty: bool = False,
    ) -> Transcription:
        """A new transcription.

        The encoder takes `chunk_tokens` * 80 ms per call. The default is 1 with `live`, else as much as a
        call takes. `blank_penalty` makes text likelier after a long run of tokens without text. Raises
        UsageError on a delay or a number of tokens that the bundle does not support.
        """

    @property
    @abstractmethod
    def max_live(self) -> int:
        """Live streams that one step can serve; 1 if the engine does not batch."""

    @abstractmethod
    def live_batch(self, slots: int) -> LiveBatch:
        """Up to `slots` live streams that are transcribed together, with the text of each alone.

        Raises UsageError above `max_live`, and if the bundle is for recordings only.
        """

    def transcribe(
        self,
        blocks: Iterable[np.ndarray],
        delay_ms: int | None = None,
        live: bool = False,
        chunk_tokens: int | None = None,
        blank_penalty: bool = False,
    ) -> Iterator[TranscriptDelta]:
        """Transcribes blocks of samples float32 [n] of any length, at `sample_rate`.

        A delta is returned as soon as its text is complete. See `begin` for the other arguments. Raises
        UsageError immediately like `begin`, and later on a block that is not such an array.
        """
        return _deltas(self.begin(delay_ms, live, chunk_tokens, blank_penalty), blocks)


def _deltas(transcription: Transcription, blocks: Iterable[np.ndarray]) -> Iterator[TranscriptDelta]:
    # the first block encodes the silence in front of the audio before the first sample is taken
    for block in chain([np.zeros(0, np.float32)], blocks):
        yield from transcription.feed(block)
    yield from transcription.finish()
