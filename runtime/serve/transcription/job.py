"""`TranscriptionJob`: passes audio from a client's handler to the engine thread, and text back."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator

import numpy as np

from voxport.runtime.audio.captions import Word
from voxport.runtime.audio.gain import SpeechLevel, reason_without_text
from voxport.runtime.serve.errors import ApiError, SessionEnds
from voxport.runtime.serve.worker import Job
from voxport.runtime.speech_to_text import TranscriptDelta, Transcription, TranscriptionOptions

LEVEL_WINDOW = 10_000  # blocks of sound in which its level is measured
log = logging.getLogger(__name__)


class TranscriptionJob(Job[TranscriptDelta]):
    """One recording, or one utterance of live audio.

    A handler also calls `feed`, `finish` and `wait_for_room`, and the engine thread also calls `take`.
    `text` and `words` are the transcript that was read so far, `language` the first one that was heard.
    """

    # The engine thread uses these three for a recording. `texts` belong to the samples that it took last.
    transcription: Transcription | None = None
    texts: Iterator[TranscriptDelta] | None = None
    is_last = False  # whether no samples follow
    session: object = None  # for live audio: the session whose live stream the utterance uses

    def __init__(self, options: TranscriptionOptions, rate: int, ahead_s: float, wake: Callable[[], None]):
        """`rate`: samples per second. `ahead_s`: seconds of audio that may wait. `wake` follows a change."""
        super().__init__(wake)
        self.options, self.text, self.words, self.language = options, "", list[Word](), ""
        self._ahead_s, self._max_waiting, self._has_room = ahead_s, int(ahead_s * rate), asyncio.Event()
        self._blocks: deque[tuple[float, np.ndarray]] = deque()  # with the time of their arrival
        self._waiting = 0  # samples
        self._is_finished = False
        self._level = SpeechLevel(rate, LEVEL_WINDOW)  # the sound that was fed so far

    # The handler

    async def read(self) -> TranscriptDelta | None:
        """The next text or words; None at the end. Raises ApiError. The text begins without a blank."""
        while (delta := await super().read()) is not None:
            text = delta.text if self.text else delta.text.lstrip()
            self.text += text
            self.words += delta.words
            self.language = self.language or delta.language
            if text or delta.words:
                return TranscriptDelta(text, delta.words, delta.language)
        if not self.transcript:
            log.info("no text: %s", self.reason_without_text)
        return None

    @property
    def transcript(self) -> str:
        """The text without blanks around it."""
        return self.text.strip()

    @property
    def seconds(self) -> float:
        """Seconds of audio so far."""
        return self._level.seconds

    @property
    def reason_without_text(self) -> str:
        """Why the transcript is empty."""
        return reason_without_text(self._level)

    @property
    def is_full(self) -> bool:
        """Whether `ahead_s` of audio waits to be transcribed."""
        return self._waiting >= self._max_waiting

    def feed(self, samples: np.ndarray) -> None:
        """Takes samples float32 [n]."""
        with self._lock:
            self._blocks.append((time.monotonic(), samples))
            self._waiting += len(samples)
            self._level.add(samples)
        self._wake()

    def finish(self) -> None:
        """No audio follows."""
        with self._lock:
            self._is_finished = True
        self._wake()

    async def wait_for_room(self, seconds: float | None = None) -> None:
        """Returns when `is_full` is false, or the job has ended. Raises SessionEnds after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self.is_full and not self._is_done:
                    self._has_room.clear()
                    await self._has_room.wait()
        except TimeoutError:
            raise too_far_ahead(self._ahead_s) from None

    def cancel(self) -> None:
        """Discards the audio. The engine thread then ends the job."""
        with self._lock:
            self.is_cancelled = True
            self._blocks.clear()
            self._waiting = 0
        self._wake()

    # The engine thread

    def ready_since(self, size: int) -> float | None:
        """When the oldest audio arrived that can be transcribed in a step of `size` samples, else None."""
        with self._lock:
            if self._waiting >= size or (self._is_finished and not self._is_done):
                return self._blocks[0][0] if self._blocks else time.monotonic()
            return None

    def take(self, size: int) -> tuple[np.ndarray, bool]:
        """At most `size` samples float32 [n], and whether the audio ends with them."""
        with self._lock:
            taken, count = [], 0
            while self._blocks and count < size:
                arrived, block = self._blocks.popleft()
                rest = block[size - count :]
                if len(rest):
                    self._blocks.appendleft((arrived, rest))
                taken.append(block[: size - count])
                count += len(taken[-1])
            self._waiting -= count
            is_last = self._is_finished and not self._blocks
        self._on_loop(self._has_room.set)
        return np.concatenate([np.zeros(0, np.float32), *taken]), is_last

    def put(self, delta: TranscriptDelta) -> None:
        self._send(delta)

    def end(self, error: ApiError | None = None) -> None:
        super().end(error)
        self._on_loop(self._has_room.set)


def too_far_ahead(seconds: float) -> SessionEnds:
    message = f"audio is more than {seconds:g} s ahead of its transcription"
    return SessionEnds(ApiError(503, message, "audio_too_far_ahead"))
