"""What a task that transcribes gives: `Transcription`, one recording or live stream; `LiveBatch`, live
streams that are transcribed together, a step of 80 ms at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from voxport.runtime.audio.captions import Word


@dataclass(frozen=True)
class TranscriptDelta:
    """Text that has become complete since the last delta, and the words that have.

    A word is complete later than its text, so a delta may have words and no text. Their times lie within the
    audio.
    """

    text: str
    words: list[Word]


class Transcription(Protocol):
    """One recording or one live stream. One thread at a time may use it."""

    def feed(self, samples: np.ndarray) -> Iterator[TranscriptDelta]:
        """Takes samples float32 [n] of any length. Yields the text that they complete.

        Raises UsageError on any other array and on a sample that is not finite.
        """

    def finish(self) -> Iterator[TranscriptDelta]:
        """The rest of the text, after the end of the audio. Nothing can be fed after it."""


class LiveStream(Protocol):
    """One live stream. One thread at a time may use it and the streams of its batch."""

    def feed(self, samples: np.ndarray) -> None:
        """Takes samples float32 [n] of any length. Raises UsageError like `Transcription.feed`."""

    def finish(self) -> None:
        """The audio has ended. Nothing can be fed after it."""

    @property
    def is_due(self) -> bool:
        """Whether the stream has input for the next step."""


class LiveBatch(Protocol):
    """Live streams whose steps share calls of the engine."""

    @property
    def has_room(self) -> bool:
        """Whether another stream can begin."""

    def begin(self, delay_ms: int | None = None) -> LiveStream:
        """A new stream. Raises UsageError like `SpeechToText.begin`."""

    def step(self) -> dict[LiveStream, list[TranscriptDelta] | Exception]:
        """A step of every stream that is due: the text that it completes, or the error that ends it."""

    def end(self, stream: LiveStream) -> None:
        """Frees the place of a stream, whatever its state."""
