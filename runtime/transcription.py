"""`Transcription`: one recording or live stream that is transcribed, and the text that it yields."""

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
