"""`LiveStreams`: the live jobs of a bundle, in batches that share the calls of the engine."""

import logging
import math
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from voxport.bundle.bounds import FRAME_SECONDS
from voxport.bundle.errors import UsageError
from voxport.runtime.serve.errors import ApiError, from_exception
from voxport.runtime.serve.transcription.job import TranscriptionJob
from voxport.runtime.speech_to_text import LiveBatch, LiveStream, SpeechToText

MAX_LOAD = 0.8  # part of real time that live streams may take
SIZES = (1, 2, 4, 8, 16, 32, 64)  # batches that are measured
MEASURED_STEPS = 12
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Capacity:
    """Live streams in one batch, and at a time."""

    batch: int
    streams: int


def measure(task: SpeechToText) -> Capacity:
    """Returns how many streams the machine transcribes in real time, at least one, from median step times."""
    best = Capacity(1, 1)
    for size in (size for size in SIZES if size <= task.max_live):
        step = _step_time(task, size)
        log.info("%.1f ms for 80 ms of live audio of %d streams", 1000 * step, size)
        batches = math.floor(MAX_LOAD * FRAME_SECONDS / step)
        if not batches:
            break
        if size * batches > best.streams:
            best = Capacity(size, size * batches)
    return best


def _step_time(task: SpeechToText, size: int) -> float:
    """Median seconds of a step of `size` streams. Each begins once per delay, so that its start is ready."""
    batch, times = task.live_batch(size), []
    for delay in task.delays_ms:
        batch.end(batch.begin(delay))
    streams = [batch.begin(min(task.delays_ms)) for _ in range(size)]
    silence = np.zeros(round(FRAME_SECONDS * task.sample_rate), np.float32)
    prompt = math.ceil(min(task.delays_ms) / (1000 * FRAME_SECONDS)) + 2  # steps before the first token
    for index in range(prompt + MEASURED_STEPS):
        started = time.perf_counter()
        for stream in streams:
            stream.feed(silence)
        for result in batch.step().values():
            if isinstance(result, Exception):
                raise result
        if index >= prompt:
            times.append(time.perf_counter() - started)
    return float(np.median(times))


@dataclass
class _StreamSlot:
    """The stream of one job, in its batch."""

    batch: LiveBatch
    stream: LiveStream
    complete_since: float | None = None  # since when the audio is complete
    stepped_at: float = 0.0  # the end of the last step


class LiveStreams:
    """Only the engine thread uses it."""

    def __init__(self, task: SpeechToText, batch: int):
        """`batch`: streams of one batch."""
        self._task, self._size = task, batch
        self._step = round(FRAME_SECONDS * task.sample_rate)
        self._slots: dict[TranscriptionJob, _StreamSlot] = {}
        self._batches: list[LiveBatch] = []
        self.audio_steps = 0.0  # encoded so far

    def retain_only(self, jobs: Collection[TranscriptionJob]) -> list[tuple[TranscriptionJob, ApiError]]:
        """Ends the streams of other jobs. Returns those of `jobs` that failed by it, with their errors."""
        failed: list[tuple[TranscriptionJob, ApiError]] = []
        for job in [job for job in self._slots if job not in jobs]:
            if slot := self._slots.pop(job, None):
                try:
                    slot.batch.end(slot.stream)
                except Exception as error:
                    failed += [each for each in self._discard_batch(slot.batch, error) if each[0] in jobs]
        return failed

    def _discard_batch(self, batch: LiveBatch, error: Exception) -> list[tuple[TranscriptionJob, ApiError]]:
        """Removes a batch whose states are undefined after `error`. Returns its jobs."""
        log.error("the slot of a live stream cannot be freed", exc_info=error)
        self._batches.remove(batch)
        jobs = [job for job, slot in self._slots.items() if slot.batch is batch]
        for job in jobs:
            del self._slots[job]
        return [(job, from_exception(error, "audio")) for job in jobs]

    def ready_since(self, job: TranscriptionJob) -> float | None:
        """When the job had enough audio for a step; None if it has too little."""
        slot = self._slots.get(job)
        if slot and slot.complete_since is not None:
            return slot.complete_since
        return job.ready_since(self._step)

    def stepped_at(self, job: TranscriptionJob) -> float:
        """When the last step of the job ended; 0 before its first one."""
        slot = self._slots.get(job)
        return slot.stepped_at if slot else 0.0

    def jobs_in_batch_of(
        self, job: TranscriptionJob, due: Collection[TranscriptionJob]
    ) -> list[TranscriptionJob]:
        """Jobs of `due` that share a batch with `job`. Gives it a slot if it has none."""
        if job not in self._slots:
            self._begin(job)
        batch = self._slots[job].batch
        for other in due:
            if other not in self._slots and batch.has_room:
                with suppress(Exception):  # it is raised again when that job is the first
                    self._begin(other)
        return [each for each in due if each in self._slots and self._slots[each].batch is batch]

    def step(self, jobs: Collection[TranscriptionJob]) -> list[tuple[TranscriptionJob, ApiError | None]]:
        """A step of the jobs of one batch. Returns those that have ended, with their errors."""
        ended: list[tuple[TranscriptionJob, ApiError | None]] = []
        fed = []
        for job in jobs:
            try:
                self._feed(job)
                fed.append(job)
            except Exception as error:  # belongs to this job, whatever it is
                ended.append((job, _as_api_error(error)))
        if not fed:
            return ended
        found, now = self._slots[fed[0]].batch.step(), time.monotonic()
        for job in fed:
            slot = self._slots[job]
            slot.stepped_at = now
            text = found.get(slot.stream, [])
            if isinstance(text, Exception):
                ended.append((job, _as_api_error(text)))
                continue
            for delta in text:
                job.put(delta)
            if slot.complete_since is not None and not slot.stream.is_due:
                ended.append((job, None))
        return ended

    def _begin(self, job: TranscriptionJob) -> None:
        """Raises what the task raises."""
        batch = next((batch for batch in self._batches if batch.has_room), None)
        if batch is None:
            batch = self._task.live_batch(self._size)
            self._batches.append(batch)
        self._slots[job] = _StreamSlot(batch, batch.begin(job.delay_ms))

    def _feed(self, job: TranscriptionJob) -> None:
        """The next 80 ms of the job, unless its stream has audio for a step."""
        slot = self._slots[job]
        if slot.stream.is_due:
            return
        samples, is_last = job.take(self._step)
        self.audio_steps += len(samples) / self._step
        slot.stream.feed(samples)
        if is_last:
            slot.complete_since = time.monotonic()
            slot.stream.finish()


def _as_api_error(error: Exception) -> ApiError:
    if not isinstance(error, UsageError):
        log.error("a live transcription failed", exc_info=error)
    return from_exception(error, "audio")
