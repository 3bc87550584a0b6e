"""`ListenWorker`: the engine thread of a speech-to-text bundle."""

import logging
import math
import time
from contextlib import suppress
from threading import Condition, Thread

import numpy as np

from bundle.errors import UsageError
from runtime.serve.errors import ApiError, draining, from_exception, overloaded
from runtime.serve.fair_queue import FairQueue
from runtime.serve.limits import Limits
from runtime.serve.listen_job import ListenJob
from runtime.serve.metrics import Metrics
from runtime.speech_to_text import SpeechToText

STEP_S = 0.08  # of live audio in one turn
RECORDING_TOKENS = 10  # of 80 ms of a recording in one turn, for which live audio waits
RECORDINGS = 4  # that are transcribed in turn; the others wait
SHARE = 0.8  # of real time that live streams may take
MEASURED_STEPS = 12
TICK_S = 0.25
log = logging.getLogger(__name__)


class ListenWorker:
    """Transcribes live audio first, the oldest 80 ms of all streams before the others, then recordings.

    Handlers call `submit`; one thread calls everything else.
    """

    def __init__(self, name: str, task: SpeechToText, limits: Limits, metrics: Metrics):
        self.name, self.task = name, task
        self._limits, self._metrics = limits, metrics
        self._step = round(STEP_S * task.sample_rate)
        self._recording_tokens = min(RECORDING_TOKENS, task.max_chunk_tokens)
        self._waiting: FairQueue[ListenJob] = FairQueue()  # recordings
        self._live: list[ListenJob] = []
        self._recordings: list[ListenJob] = []  # in the order of their turns
        self._changed = Condition()
        self._stops = self._is_draining = False
        self.live_slots = self._measure() if self.is_live else 0
        self._thread = Thread(target=self._run, name=f"engine of {name}", daemon=True)
        metrics.slots.labels(name).set(self.live_slots)

    # Handlers

    @property
    def is_live(self) -> bool:
        """Whether the bundle can transcribe live audio."""
        with suppress(UsageError):
            self.task.check_live()
            return True
        return False

    def start(self) -> None:
        self._thread.start()

    @property
    def is_ready(self) -> bool:
        return self._thread.is_alive() and not self._is_draining

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not (self._waiting or self._live or self._recordings)

    def drain(self) -> None:
        """Refuses new work; recordings that wait end with an error."""
        with self._changed:
            self._is_draining = True
            for job in self._waiting.remove(lambda job: True):
                job.end(draining())
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the thread; what runs ends with an error."""
        with self._changed:
            self._stops = self._is_draining = True
            self._changed.notify_all()
        if self._thread.ident:
            self._thread.join(timeout=10)

    def submit(self, key: str, is_live: bool, delay_ms: int | None) -> ListenJob:
        """A job for one recording or one utterance. Called on the event loop. Raises ApiError, UsageError."""
        if delay_ms is not None and delay_ms not in self.task.delays_ms:
            delays = ", ".join(map(str, self.task.delays_ms))
            raise UsageError(f"delay_ms {delay_ms}: expected one of {delays}", field="delay_ms")
        if is_live:
            self.task.check_live()
        job = ListenJob(key, is_live, delay_ms, self.task.sample_rate, self._limits.ahead_s, self._wake)
        with self._changed:
            if not self._thread.is_alive() or self._is_draining:
                raise draining()
            if not is_live and len(self._waiting) >= self._limits.waiting:
                raise overloaded(f"{len(self._waiting)} recordings wait for {self.name}; try again later", 10)
            if is_live and len(self._live) >= self.live_slots:
                raise overloaded(
                    f"{self.name} follows {len(self._live)} live streams, its limit; try again later", 10
                )
            self._live.append(job) if is_live else self._waiting.put(job)
            self._changed.notify_all()
        return job

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # The engine thread

    def _measure(self) -> int:
        """How many live streams the machine can follow, from the median time of a step; at least 1."""
        transcription, times = self.task.begin(live=True), []
        silence = np.zeros(self._step, np.float32)
        prompt = math.ceil(min(self.task.delays_ms) / 80) + 2  # steps before the first token
        for index in range(prompt + MEASURED_STEPS):
            started = time.perf_counter()
            for _ in transcription.feed(silence):
                pass
            if index >= prompt:
                times.append(time.perf_counter() - started)
        step = float(np.median(times))
        slots = max(1, math.floor(SHARE * STEP_S / step))
        log.info(
            "%s: %.1f ms for 80 ms of live audio, at most %d live streams", self.name, 1000 * step, slots
        )
        return slots

    def _run(self) -> None:
        error = draining()
        try:
            while not self._stops:
                self._turn()
        except Exception:  # nothing is known about the engine now: the bundle is no longer served
            log.exception("%s: the engine thread ended", self.name)
            error = ApiError(503, f"{self.name}: the engine failed; restart the server", "engine_failed")
        with self._changed:
            jobs = [*self._waiting.remove(lambda job: True), *self._live, *self._recordings]
            self._live, self._recordings, self._is_draining = [], [], True
        for job in jobs:
            job.end(error)

    def _turn(self) -> None:
        with self._changed:
            self._drop()
            job = self._next_live() or self._next_recording()
            if job is None:
                self._changed.wait(TICK_S if self._waiting else None)
                return
        self._advance(job)

    def _drop(self) -> None:
        """Ends jobs that are cancelled or waited too long, and starts recordings."""
        now = time.monotonic()
        for job in self._waiting.remove(lambda job: job.is_cancelled):
            self._end(job, "client")
        for job in self._waiting.remove(lambda job: now - job.submitted_at > self._limits.queue_s):
            self._end(
                job,
                "queue_timeout",
                overloaded(f"no turn in {self._limits.queue_s:g} s; try again later", 10),
            )
        for job in [job for job in (*self._live, *self._recordings) if job.is_cancelled]:
            self._remove(job)
            self._end(job, "client")
        while self._waiting and len(self._recordings) < RECORDINGS:
            job = self._waiting.take()
            self._metrics.queue_seconds.labels(self.name).observe(now - job.submitted_at)
            self._recordings.append(job)
        self._metrics.waiting.labels(self.name).set(len(self._waiting))
        self._metrics.slots_busy.labels(self.name).set(len(self._live))

    def _next_live(self) -> ListenJob | None:
        """The stream with the oldest audio that nothing has transcribed."""
        due = [(at, job) for job in self._live if (at := job.oldest(self._step)) is not None]
        if not due:
            return None
        at, job = min(due, key=lambda pair: pair[0])
        self._metrics.late_seconds.labels(self.name).inc(max(0.0, time.monotonic() - at - STEP_S))
        return job

    def _next_recording(self) -> ListenJob | None:
        for job in self._recordings:
            if job.oldest(1) is not None:
                self._recordings.remove(job)
                self._recordings.append(job)
                return job
        return None

    def _advance(self, job: ListenJob) -> None:
        """Transcribes some audio of one job."""
        started = time.perf_counter()
        try:
            if not job.is_running:
                chunk = None if job.is_live else self._recording_tokens
                job.transcription = self.task.begin(job.delay_ms, job.is_live, chunk)
                job.is_running = True
            samples, is_last = job.take(self._step if job.is_live else self._recording_tokens * self._step)
            for delta in job.transcription.feed(samples):
                job.put(delta)
            for delta in job.transcription.finish() if is_last else ():
                job.put(delta)
        except Exception as error:  # belongs to this job, whatever it is
            if not isinstance(error, UsageError):
                log.exception("%s: a transcription failed", self.name)
            self._finish(job, from_exception(error, "file"))
            return
        self._metrics.pass_seconds.labels(self.name).observe(time.perf_counter() - started)
        self._metrics.frames.labels(self.name).inc(len(samples) / self._step)
        if is_last:
            self._finish(job)

    def _finish(self, job: ListenJob, error: ApiError | None = None) -> None:
        with self._changed:
            self._remove(job)
        job.end(error)

    def _remove(self, job: ListenJob) -> None:
        for jobs in (self._live, self._recordings):
            if job in jobs:
                jobs.remove(job)

    def _end(self, job: ListenJob, reason: str, error: ApiError | None = None) -> None:
        self._metrics.cancelled.labels(reason).inc()
        job.end(error)
