"""`SpeechToText`: the task of a bundle that transcribes, its transcriptions, and its batches of live streams.

`voxport.open` returns an implementation.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, TypedDict, Unpack

import numpy as np

from voxport.bundle.bounds import FRAME_SECONDS
from voxport.bundle.errors import UsageError
from voxport.runtime.audio.captions import Word


@dataclass(frozen=True)
class TranscriptDelta:
    """Text that has become complete since the last delta, and the words that have.

    A word is complete later than its text, so a delta may have words and no text. Their times lie within the
    audio. `language` is what the model heard, if it says so: a code, or the name of a language without one.
    """

    text: str
    words: list[Word]
    language: str = ""


class TranscriptionOptions(TypedDict, total=False):
    """How audio is transcribed. A model ignores what it has no use for.

    delay_ms: delay of the text behind the audio, one of `SpeechToText.delays_ms`.
    live: whether text is wanted while the audio arrives.
    chunk_tokens: the encoder takes so many tokens of 80 ms of audio per call. The default is 1 with `live`,
        else as much as a call takes.
    blank_penalty: makes text likelier after a long run of tokens without text.
    language: code of the language that is spoken; None if the model finds it.
    context: names and words that may be spoken.
    words: whether times of words are wanted, which an aligner takes time for; they are by default.
    """

    delay_ms: int | None
    live: bool
    chunk_tokens: int | None
    blank_penalty: bool
    language: str | None
    context: str
    words: bool


def check_samples(samples: np.ndarray, rate: int, before: int = 0) -> None:
    """Raises UsageError on anything but finite float32 [n]. `before`: the number of earlier samples."""
    if not isinstance(samples, np.ndarray) or samples.ndim != 1 or samples.dtype.kind != "f":
        is_array = isinstance(samples, np.ndarray | np.generic)
        found = f"{samples.dtype} {list(samples.shape)}" if is_array else type(samples).__name__
        raise UsageError(
            f"audio: a block of {found}, expected a NumPy array of float32 [n] in [-1, 1] at {rate} Hz"
        )
    if not np.isfinite(samples).all():
        at = (before + int(np.argmin(np.isfinite(samples)))) / rate
        raise UsageError(f"audio: the sample at {at:.3f} s is not a finite number; repair the recording")


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

    def begin(self, **options: Unpack[TranscriptionOptions]) -> LiveStream:
        """A new stream; it is live. Raises UsageError like `SpeechToText.begin`."""

    def step(self) -> dict[LiveStream, list[TranscriptDelta] | Exception]:
        """A step of every stream that is due: the text that it completes, or the error that ends it."""

    def end(self, stream: LiveStream) -> None:
        """Frees the place of a stream, whatever its state."""


class SpeechToText(ABC):
    """Transcribes recordings and live streams. Transcriptions are independent and may be interleaved."""

    languages: tuple[str, ...] = ("en",)  # codes of ISO 639 of those that the model transcribes
    has_hints = False  # whether `language` and `context` have an effect
    ignored: tuple[str, ...] = ()  # options of the command without one
    live_only: tuple[str, ...] = ()  # options of the command without one on recordings
    has_word_times = True  # whether deltas have words
    is_steady = True  # whether 80 ms of live sound take the same time however long the stream is

    @property
    @abstractmethod
    def sample_rate(self) -> int:
        """Sample rate of the audio in Hz."""

    def open_files(self) -> None:  # noqa: B027  optional
        """Opens all files of the bundle and waits. Raises VoxportError."""

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

    def check_context(self, context: str) -> None:  # noqa: B027  a model without hints takes any
        """Raises UsageError on a context that is too long."""

    def count_tokens(self, text: str, seconds: float) -> tuple[int, int]:
        """Tokens of so much sound, and those that the model wrote for its text: here one for each 80 ms."""
        steps = round(seconds / FRAME_SECONDS)
        return steps, steps

    @abstractmethod
    def begin(self, **options: Unpack[TranscriptionOptions]) -> Transcription:
        """A new transcription. Raises UsageError on options that the bundle does not support."""

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
        self, blocks: Iterable[np.ndarray], **options: Unpack[TranscriptionOptions]
    ) -> Iterator[TranscriptDelta]:
        """Transcribes blocks of samples float32 [n] of any length, at `sample_rate`.

        A delta is returned as soon as its text is complete. Raises UsageError immediately like `begin`, and
        later on a block that is not such an array.
        """
        return _deltas(self.begin(**options), blocks)


def _deltas(transcription: Transcription, blocks: Iterable[np.ndarray]) -> Iterator[TranscriptDelta]:
    # the first block encodes the silence in front of the audio before the first sample is taken
    for block in chain([np.zeros(0, np.float32)], blocks):
        yield from transcription.feed(block)
    yield from transcription.finish()
