"""`TranscriptionWorker`: the engine thread of a speech-to-text bundle."""

import logging
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Unpack

import numpy as np

from voxport.bundle.bounds import FRAME_SECONDS
from voxport.bundle.errors import UsageError
from voxport.bundle.names import language_code
from voxport.runtime.audio.silero import CHUNK, SpeechProbability
from voxport.runtime.serve.errors import ApiError, failure, overloaded
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.transcription.job import TranscriptionJob
from voxport.runtime.serve.transcription.live_streams import Capacity, LiveStreams, measure
from voxport.runtime.serve.worker import TICK_S, Worker
from voxport.runtime.speech_to_text import (
    SpeechToText,
    TranscriptDelta,
    Transcription,
    TranscriptionOptions,
)
from voxport.runtime.text.languages import AUTO

RECORDING_TURN_S = 0.2  # after which a recording that still gives texts lets others go first
RECORDING_TOKENS = 10  # steps of 80 ms of a recording in one turn, for which live audio waits
MAX_RECORDINGS = 4  # transcribed round-robin; the others wait
log = logging.getLogger(__name__)


class TranscriptionWorker(Worker[TranscriptionJob]):
    """Transcribes live audio first, the stream that waits longest before the others, then recordings.

    A stream waits since its next 80 ms arrived, or since its last step if that was later: one whose audio is
    sent ahead delays another by one step. Streams of one batch take a step together. Recordings wait in the
    queue.
    """

    def __init__(self, name: str, task: SpeechToText, limits: Limits, metrics: Metrics):
        super().__init__(name, limits, metrics)
        self.task = task
        self._step = round(FRAME_SECONDS * task.sample_rate)
        self._recording_tokens = min(RECORDING_TOKENS, task.max_chunk_tokens)
        self._live: list[TranscriptionJob] = []
        self._queued_utterances: list[TranscriptionJob] = []  # behind the one before in their session
        self._recordings: list[TranscriptionJob] = []  # in round-robin order
        capacity = measure(task) if self.is_live else Capacity(1, 0)
        self.live_slots = capacity.streams
        self._streams = LiveStreams(task, capacity.batch)
        if self.is_live:
            log.info("%s: at most %d live streams", name, self.live_slots)
        metrics.slots.labels(name).set(self.live_slots)

    # Handlers

    @property
    def is_live(self) -> bool:
        """Whether the bundle can transcribe live audio."""
        with suppress(UsageError):
            self.task.check_live()
            return True
        return False

    def check_language(self, language: str | None, param: str = "language") -> str | None:
        """The code of a language by its code or English name; None if the model detects which one it is.

        Raises ApiError of `param` on one that the model does not have.
        """
        if language is None or language.lower() == AUTO:
            return None
        code = language_code(language)
        if code in self.task.languages:
            return code
        reason = (
            f"{param}: {language[:50]!r} is no language of {self.name}; expected one of "
            f"{', '.join(self.task.languages)}, or {AUTO} and the model detects which one it is"
        )
        raise ApiError(400, reason, "invalid_value", param)

    def submit(self, **options: Unpack[TranscriptionOptions]) -> TranscriptionJob:
        """A job for one recording. Called on the event loop. Raises ApiError."""
        job = self._new_job(options)
        self._enqueue(job)
        return job

    def submit_live(self, session: object, **options: Unpack[TranscriptionOptions]) -> TranscriptionJob:
        """A job for one utterance. Called on the event loop. Raises ApiError.

        It waits for the one before it in the same `session`, and then takes its live stream.
        """
        job = self._new_job(options)
        job.session = session
        with self._changed:
            self.check_open()
            if any(other.session is session for other in self._live):
                self._queued_utterances.append(job)
            elif (streams := sum(not other.is_cancelled for other in self._live)) < self.live_slots:
                self._live.append(job)
            else:
                message = f"{self.name} has {streams} live streams, its limit; try again later"
                raise overloaded(message)
            self._changed.notify_all()
        return job

    def _new_job(self, options: TranscriptionOptions) -> TranscriptionJob:
        return TranscriptionJob(options, self.task.sample_rate, self._limits.ahead_s, self._wake)

    def check_delay(self, delay_ms: int | None) -> None:
        """Raises ApiError."""
        if delay_ms is not None and delay_ms not in self.task.delays_ms:
            reason = f"delay_ms {delay_ms}: expected one of {', '.join(map(str, self.task.delays_ms))}"
            raise ApiError(400, reason, "invalid_value", "delay_ms")

    # The engine thread

    def _active_jobs(self) -> list[TranscriptionJob]:
        return [*self._live, *self._queued_utterances, *self._recordings]

    def _clear_jobs(self) -> None:
        self._live, self._queued_utterances, self._recordings = [], [], []

    def _warm_up(self) -> None:
        self.task.open_files()
        if self.live_slots and self.task.is_steady:  # its steps were measured
            SpeechProbability().feed(np.zeros(CHUNK, np.float32))  # reads its weights
            return
        transcription = self.task.begin()
        for deltas in (transcription.feed(np.zeros(self._step, np.float32)), transcription.finish()):
            list(deltas)

    def _run_once(self) -> None:
        with self._changed:
            self._end_cancelled_and_expired()
            self._start_recordings()
            self._publish()
            live = list(self._live)
        for job, error in self._streams.retain_only(live):  # may copy states, for which no handler waits
            self._finish(job, error)
        with self._changed:
            due, recording = self._live_jobs_due(), None
            if not due and (recording := self._next_recording()) is None:
                self._changed.wait(TICK_S if self._waiting else None)
                return
        if recording:
            self._step_recording(recording)
        else:
            self._step_live(due)

    def _end_cancelled_and_expired(self) -> None:
        """Ends jobs that are cancelled, and recordings that waited too long for their start."""
        self._end_waiting()
        for job in [job for job in self._active_jobs() if job.is_cancelled]:
            self._remove(job)
            self._end_early(job, "client")

    def _start_recordings(self) -> None:
        """Takes recordings from the queue while there is a place for them."""
        while self._waiting and len(self._recordings) < MAX_RECORDINGS:
            self._recordings.append(self._take_waiting())

    def _publish(self) -> None:
        self._metrics.waiting.labels(self.name).set(len(self._waiting))
        self._metrics.slots_busy.labels(self.name).set(len(self._live))

    def _live_jobs_due(self) -> list[TranscriptionJob]:
        """Live jobs with audio for a step, those that wait longest first."""
        ready = [(at, job) for job in self._live if (at := self._streams.ready_since(job)) is not None]
        if not ready:
            return []
        late = time.monotonic() - min(at for at, _ in ready) - FRAME_SECONDS
        self._metrics.late_seconds.labels(self.name).inc(max(0.0, late))
        ready.sort(key=lambda pair: max(pair[0], self._streams.stepped_at(pair[1])))
        return [job for _, job in ready]

    def _step_live(self, due: list[TranscriptionJob]) -> None:
        started, steps = time.perf_counter(), self._streams.audio_steps
        for job, error in self._streams.step(due):
            self._finish(job, error)
        self._count_pass(started, self._streams.audio_steps - steps)

    def _next_recording(self) -> TranscriptionJob | None:
        """The next recording with work, which moves behind the others."""
        for job in self._recordings:
            if job.texts is not None or job.ready_since(1) is not None:
                self._recordings.remove(job)
                self._recordings.append(job)
                return job
        return None

    def _step_recording(self, job: TranscriptionJob) -> None:
        """Transcribes up to `RECORDING_TOKENS` of a recording, or goes on for one turn with the texts of
        sound that it took before: some models find many texts at once.
        """
        started, count = time.perf_counter(), 0
        try:
            if job.transcription is None:
                job.transcription = self.task.begin(
                    **(job.options | TranscriptionOptions(chunk_tokens=self._recording_tokens))
                )
            if job.texts is None:
                samples, job.is_last = job.take(self._recording_tokens * self._step)
                count = len(samples)
                job.texts = _texts(job.transcription, samples, job.is_last)
            for delta in job.texts:
                job.put(delta)
                if time.perf_counter() - started > RECORDING_TURN_S:
                    break
            else:
                job.texts = None
        except Exception as error:  # belongs to this job, whatever it is
            self._finish(job, failure(error, "file"))
            return
        self._count_pass(started, count / self._step)
        if job.is_last and job.texts is None:
            self._finish(job)

    def _finish(self, job: TranscriptionJob, error: ApiError | None = None) -> None:
        with self._changed:
            self._remove(job)
        job.end(error)

    def _remove(self, job: TranscriptionJob) -> None:
        """Removes an active job from its list. The next one of its session takes its live stream."""
        was_live = job in self._live
        for jobs in (self._live, self._queued_utterances, self._recordings):
            if job in jobs:
                jobs.remove(job)
        following = [other for other in self._queued_utterances if other.session is job.session]
        if was_live and following:
            self._queued_utterances.remove(following[0])
            self._live.append(following[0])


def _texts(transcription: Transcription, samples: np.ndarray, is_last: bool) -> Iterator[TranscriptDelta]:
    yield from transcription.feed(samples)
    if is_last:
        yield from transcription.finish()
