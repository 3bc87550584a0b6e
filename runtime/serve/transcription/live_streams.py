"""`LiveStreams`: the live jobs of a bundle, in batches that share the calls of the engine."""

import logging
import math
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from voxport.bundle.bounds import FRAME_SECONDS
from voxport.runtime.serve.errors import ApiError, failure
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
    """Returns how many streams the machine transcribes in real time, at least one, from median step times.

    One of a task whose steps become slower: their times say nothing about later ones.
    """
    best = Capacity(1, 1)
    if not task.is_steady:
        return best
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
        batch.end(batch.begin(delay_ms=delay))
    streams = [batch.begin(delay_ms=min(task.delays_ms)) for _ in range(size)]
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
        """Ends the streams of other jobs. Returns the `jobs` that failed by it, with their errors."""
        failed: list[tuple[TranscriptionJob, ApiError]] = []
        for job in [job for job in self._slots if job not in jobs]:
            if slot := self._slots.pop(job, None):
                try:
                    slot.batch.end(slot.stream)
                except Exception as error:
                    found = failure(error, "audio")
                    failed += [(each, found) for each in self._discard_batch(slot.batch) if each in jobs]
        return failed

    def _discard_batch(self, batch: LiveBatch) -> list[TranscriptionJob]:
        """Removes a batch whose states are undefined. Returns its jobs."""
        self._batches.remove(batch)
        jobs = [job for job, slot in self._slots.items() if slot.batch is batch]
        for job in jobs:
            del self._slots[job]
        return jobs

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

    def step(self, due: Sequence[TranscriptionJob]) -> list[tuple[TranscriptionJob, ApiError | None]]:
        """A step of the first job, and of the others that share its batch.

        Returns those that have ended, with their errors.
        """
        try:
            batch = self._batch_of(due[0])
        except Exception as error:
            return [(due[0], failure(error, "audio"))]
        for job in due:
            if job not in self._slots and batch.has_room:
                with suppress(Exception):  # it is raised again when that job is the first
                    self._slots[job] = _StreamSlot(batch, batch.begin(**job.options))
        jobs = [job for job in due if job in self._slots and self._slots[job].batch is batch]
        for job in jobs:
            self._feed(job)
        found, now = batch.step(), time.monotonic()
        ended: list[tuple[TranscriptionJob, ApiError | None]] = []
        for job in jobs:
            slot = self._slots[job]
            slot.stepped_at = now
            text = found.get(slot.stream, [])
            if isinstance(text, Exception):
                ended.append((job, failure(text, "audio")))
                continue
            for delta in text:
                job.put(delta)
            if slot.complete_since is not None and not slot.stream.is_due:
                ended.append((job, None))
        return ended

    def _batch_of(self, job: TranscriptionJob) -> LiveBatch:
        """The batch of the job, which gets a stream if it has none. Raises what the task raises."""
        if job in self._slots:
            return self._slots[job].batch
        batch = next((batch for batch in self._batches if batch.has_room), None)
        if batch is None:
            batch = self._task.live_batch(self._size)
            self._batches.append(batch)
        self._slots[job] = _StreamSlot(batch, batch.begin(**job.options))
        return batch

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
