"""A batch of one live stream, for a task that transcribes one stream per call."""

from collections.abc import Callable
from typing import Unpack

import numpy as np

from voxport.runtime.speech_to_text import LiveStream, TranscriptDelta, Transcription, TranscriptionOptions


class SingleStreamBatch:
    """Implements `runtime.speech_to_text.LiveBatch`."""

    def __init__(self, begin: Callable[..., Transcription]):
        self._begin, self._stream = begin, _SingleStream()

    @property
    def has_room(self) -> bool:
        return self._stream.transcription is None

    def begin(self, **options: Unpack[TranscriptionOptions]) -> LiveStream:
        self._stream = _SingleStream()
        self._stream.transcription = self._begin(**options, live=True)
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
