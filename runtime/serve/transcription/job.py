"""`TranscriptionJob`: passes audio from a client's handler to the engine thread, and text back."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from voxport.runtime.audio.gain import reason_without_text
from voxport.runtime.audio.levels import SpeechLevel
from voxport.runtime.serve.errors import ApiError
from voxport.runtime.serve.job import Job
from voxport.runtime.speech_to_text import TranscriptDelta, Transcription

LEVEL_WINDOW = 10_000  # blocks of sound in which its level is measured
log = logging.getLogger(__name__)


class TranscriptionJob(Job[TranscriptDelta]):
    """One recording, or one utterance of live audio.

    A handler also calls `feed`, `finish` and `wait_for_room`, and the engine thread also calls `take`.
    """

    transcription: Transcription  # made and used by the engine thread

    def __init__(self, key: str, delay_ms: int | None, rate: int, ahead_s: float, wake: Callable[[], None]):
        """`rate`: samples per second. `ahead_s`: seconds of audio that may wait. `wake` follows a change."""
        super().__init__(key, wake)
        self.delay_ms, self.is_running = delay_ms, False
        self.session: object = None  # for live audio: the session whose live stream the utterance uses
        self.length_s = 0.0  # estimated length of a recording
        self.transcribed_s = 0.0  # how much of the recording
        self._max_waiting, self._has_room = int(ahead_s * rate), asyncio.Event()
        self._blocks: deque[tuple[float, np.ndarray]] = deque()  # with the time of their arrival
        self._waiting = 0  # samples
        self._is_finished = False
        self._level = SpeechLevel(rate, LEVEL_WINDOW)  # the sound that was fed so far

    # The handler

    @property
    def is_live(self) -> bool:
        return self.session is not None

    @property
    def seconds(self) -> float:
        """Seconds of audio so far."""
        return self._level.seconds

    def reason_without_text(self) -> str:
        """Why the transcript is empty. It is logged, too."""
        reason = reason_without_text(self._level)
        log.info("no text: %s", reason)
        return reason

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

    async def wait_for_room(self) -> None:
        """Returns when `is_full` is false, or the job has ended."""
        while self.is_full and not self._is_done:
            self._has_room.clear()
            if self.is_full and not self._is_done:
                await self._has_room.wait()

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
