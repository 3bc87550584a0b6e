"""`LiveBatch`: live streams of audio that are transcribed together, a step of 80 ms at a time."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from voxport.runtime.transcription import TranscriptDelta, Transcription


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
        """A new stream. Raises UsageError where `SpeechToText.begin` does."""

    def step(self) -> dict[LiveStream, list[TranscriptDelta] | Exception]:
        """A step of every stream that is due: the text that it completes, or the error that ends it."""

    def end(self, stream: LiveStream) -> None:
        """Frees the place of a stream, whatever its state."""


class SingleStreamBatch:
    """A batch of one stream, for a task that transcribes one stream per call."""

    def __init__(self, begin: Callable[[int | None], Transcription]):
        self._begin, self._stream = begin, _SingleStream()

    @property
    def has_room(self) -> bool:
        return self._stream.transcription is None

    def begin(self, delay_ms: int | None = None) -> LiveStream:
        self._stream = _SingleStream()
        self._stream.transcription = self._begin(delay_ms)
        return self._stream

    def step(self) -> dict[LiveStream, list[TranscriptDelta] | Exception]:
        if not self._stream.is_due:
            return {}
        try:
            return {self._stream: self._stream.transcribe()}
        except Exception as error:
            return {self._stream: error}

    def end(self, stream: LiveStream) -> None:
        self._stream = _SingleStream()


class _SingleStream:
    """The stream of `SingleStreamBatch`. Audio is transcribed in a step."""

    transcription: Transcription | None = None

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []
        self._is_finished = False

    def feed(self, samples: np.ndarray) -> None:
        self._blocks.append(samples)

    def finish(self) -> None:
        self._is_finished = True

    @property
    def is_due(self) -> bool:
        return bool(self._blocks) or self._is_finished

    def transcribe(self) -> list[TranscriptDelta]:
        assert self.transcription is not None
        blocks, self._blocks = self._blocks, []
        deltas = [delta for block in blocks for delta in self.transcription.feed(block)]
        if self._is_finished:
            self._is_finished = False
            deltas += self.transcription.finish()
        return deltas
