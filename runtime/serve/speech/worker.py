"""`SpeechWorker`: the engine thread of a text-to-speech bundle. It owns every slot."""

import logging
import time
from collections.abc import Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.files import SAMPLE_BYTES
from voxport.runtime.batching import Status, StepEvent, Ticket
from voxport.runtime.serve.errors import ApiError, failure
from voxport.runtime.serve.limits import MIB, Limits
from voxport.runtime.serve.metrics import Metrics
from voxport.runtime.serve.speech.job import BufferPool, PreparedSpeech, SpeechJob
from voxport.runtime.serve.worker import TICK_S, Worker
from voxport.runtime.speech_request import SpeechOptions, SpeechRequest
from voxport.runtime.text.preparation import NothingToSpeak
from voxport.runtime.text_to_speech import Speech, TextToSpeech

WARM_UP_TEXT, WARM_UP_DESCRIPTION = "Hello.", "A calm voice."
TRUNCATED = (Status.BUDGET, Status.REPETITION, Status.SILENCE, Status.CACHE)  # not by the model or the client
log = logging.getLogger(__name__)


class SpeechWorker(Worker[SpeechJob]):
    """Serves texts in the slots of one `BatchedDecoder`.

    Handlers call `submit` and the methods of a job; one thread calls everything else. A long text has a slot
    for one part at a time. The next part starts when the client has received enough of the last one, so a
    slow client never holds a slot. It precedes texts that have not begun. A text that still arrives is one
    job as well. Another thread prepares the next parts, because that reads files.
    """

    def __init__(
        self, name: str, task: TextToSpeech, limits: Limits, metrics: Metrics, pool: BufferPool, slots: int
    ):
        super().__init__(name, limits, metrics)
        self.task = task
        self.slots = min(slots, task.max_slots)
        self._pool, self._decoder = pool, task.batched(self.slots)
        self._waiting_for_slot: list[SpeechJob] = []  # their next part needs a slot and room in the buffers
        self._waiting_for_text: list[SpeechJob] = []  # the text of their next part is still to come
        self._running: dict[Ticket, SpeechJob] = {}
        self._part_threads = ThreadPoolExecutor(1, f"parts of {name}")
        log.info("%s: at most %d texts at a time", name, self.slots)
        metrics.slots.labels(name).set(self.slots)

    def stop(self) -> None:
        super().stop()
        self._part_threads.shutdown(wait=False, cancel_futures=True)

    # Handlers

    def prepare(
        self, text: str | Iterable[str], options: SpeechOptions, threads: Executor | None = None
    ) -> PreparedSpeech:
        """Checks a text and its options, and prepares its first part. Any thread. Raises UsageError.

        A text may arrive in pieces. This call waits for its first part, and `threads` wait for each other one
        while the part before it is spoken. Such a text has no `max_frames`. A text without a word becomes
        silence.
        """
        speech = Speech(self.task, text, **options)
        try:
            part = speech.next_part()
        except NothingToSpeak:
            return PreparedSpeech(speech, None)
        assert part is not None  # a text without a part raises
        return PreparedSpeech(speech, self._decoder.prepare(part), threads)

    def default_voice(self) -> str | None:
        """The voice of a request that names none; None if the model chooses one. Raises ApiError."""
        try:
            return self.task.default_bundle_voice()
        except UsageError:
            reason = f"voice: {self.name} has no voice of its own; name one"
            raise ApiError(400, reason, "voice_not_found", "voice") from None

    @property
    def clones(self) -> bool:
        """Whether the model makes voices from recordings."""
        with suppress(UsageError):
            self.task.check_cloning()
            return True
        return False

    @property
    def chooses_voice(self) -> bool:
        """Whether the model chooses a voice, and has none to name."""
        with suppress(UsageError):
            return self.task.default_bundle_voice() is None and not self.task.bundle_voices()
        return False

    def submit(self, prepared: PreparedSpeech) -> SpeechJob:
        """Queues a prepared text. Called on the event loop. Raises ApiError if there is no room."""
        job = SpeechJob(prepared, self._pool, self._wake)
        with self._changed:
            if prepared.ticket:
                self._enqueue(job)
            else:
                self.check_open()
            job.mark(prepared.speech.part)
            job.put(prepared.speech.silence)
            if not prepared.ticket:
                job.end()
        return job

    # The engine thread

    def _active_jobs(self) -> list[SpeechJob]:
        return [*self._waiting_for_text, *self._waiting_for_slot, *self._running.values()]

    def _clear_jobs(self) -> None:
        self._waiting_for_text, self._waiting_for_slot, self._running = [], [], {}

    def _warm_up(self) -> None:
        self.task.open_files()
        with TemporaryDirectory(prefix="voxport-") as folder:
            try:
                ticket = self._part_threads.submit(self._submit_warm_up, Path(folder)).result()
            except UsageError as error:
                log.warning("%s: its first request takes longer, because it refuses %s", self.name, error)
                return
            while not ticket.is_done:
                self._decoder.step()
        if ticket.error:
            raise ticket.error

    def _submit_warm_up(self, folder: Path) -> Ticket:
        """A model that refuses a bare text gets a description, or nobody's voice in `folder`.

        Raises UsageError.
        """
        request = SpeechRequest(WARM_UP_TEXT, max_frames=1)
        with suppress(UsageError):
            return self._decoder.submit(replace(request, voice=self.task.default_bundle_voice()))
        if self.task.follows_instructions:
            return self._decoder.submit(replace(request, instruct=WARM_UP_DESCRIPTION))
        voice = folder / "voice.safetensors"
        voice.write_bytes(self.task.neutral_voice())
        return self._decoder.submit(replace(request, voice=str(voice), store_prefix=False))

    def _run_once(self) -> None:
        with self._changed:
            self._end_cancelled_and_expired()
            self._admit()
            self._publish()
            if not self._running:
                self._changed.wait(TICK_S if self._waiting or self._waiting_for_slot else None)
                return
        started = time.perf_counter()
        events = self._decoder.step()
        frames = sum(samples is not None for _, samples in events)  # a prompt that is read makes none
        self._count_pass(started, frames)
        for event in events:
            try:
                self._deliver(event)
            except Exception as error:  # belongs to this request, whatever it is
                self._fail(event.ticket, error)

    def _end_cancelled_and_expired(self) -> None:
        """Ends jobs that are cancelled, and those that waited too long."""
        self._end_waiting()
        for jobs in (self._waiting_for_text, self._waiting_for_slot):
            for job in [job for job in jobs if job.is_cancelled]:
                jobs.remove(job)
                self._end_early(job, "client")

    def _admit(self) -> None:
        """Fills free slots."""
        while len(self._running) < self.slots and (job := self._take_next()):
            assert job.ticket is not None  # a text without a word is not queued
            self._running[job.ticket] = job
            self._decoder.enqueue(job.ticket)
            if job.threads:
                with suppress(RuntimeError):  # they have ended, because the client has left
                    job.next_ticket = job.threads.submit(self._next_part, job)

    def _take_next(self) -> SpeechJob | None:
        """The next part of a text precedes new texts, also while it is prepared."""
        for job in self._waiting_for_slot:
            if self._has_room(job):
                self._waiting_for_slot.remove(job)
                return job
        preparing = sum(not job.threads for job in self._waiting_for_text)
        has_slot = len(self._running) + preparing < self.slots
        return self._take_waiting() if self._waiting and has_slot and self._pool_has_room() else None

    def _has_room(self, job: SpeechJob) -> bool:
        size = self._limits.job_buffer_mib * MIB
        return job.buffered + self._part_bytes <= size and self._pool_has_room()

    def _pool_has_room(self) -> bool:
        """For another part beside those that run."""
        return self._pool.has_room(self._part_bytes * (1 + len(self._running)))

    @property
    def _part_bytes(self) -> int:
        """About as many bytes as the speech of a part has: 60 s. A part of usual length has 16 s."""
        return min(60 * self.task.sample_rate * SAMPLE_BYTES, self._limits.job_buffer_mib * MIB)

    def _publish(self) -> None:
        self._metrics.waiting.labels(self.name).set(len(self._waiting))
        self._metrics.slots_busy.labels(self.name).set(len(self._running))
        self._metrics.buffer_bytes.set(self._pool.used)

    def _deliver(self, event: StepEvent) -> None:
        ticket, samples = event
        job = self._running[ticket]
        if samples is not None:
            if not job.frames:
                self._metrics.first_sound.labels(self.name).observe(time.monotonic() - job.submitted_at)
            job.frames += len(samples) // self.task.samples_per_frame
            job.put(job.speech.take(samples))
        if ticket.is_done:
            self._end_part(job, ticket)  # first: between two parts the worker is not idle
            with self._changed:
                del self._running[ticket]

    def _fail(self, ticket: Ticket, error: Exception) -> None:
        job = self._running[ticket]
        job.end(failure(error))
        ticket.cancel()
        with self._changed:
            if ticket.is_done:
                del self._running[ticket]
            if job in self._waiting_for_text:
                self._waiting_for_text.remove(job)

    def _end_part(self, job: SpeechJob, ticket: Ticket) -> None:
        if ticket.error:
            job.end(failure(ticket.error))
            return
        if ticket.status == Status.CANCELLED or job.is_cancelled:
            self._end_early(job, "client")
            return
        if ticket.status in TRUNCATED:
            log.warning("%s: the speech of a text was cut off: %s", self.name, ticket.status)
            self._metrics.cancelled.labels(ticket.status).inc()
        job.speech.end_part(ticket.status)
        job.mark("")
        with self._changed:
            self._waiting_for_text.append(job)
        with suppress(RuntimeError):  # the worker has stopped
            part = job.next_ticket or self._part_threads.submit(self._next_part, job)
            part.add_done_callback(lambda part: self._queue_next_part(job, part))

    def _next_part(self, job: SpeechJob) -> Ticket | None:
        """Prepares the next part of a text; None at the end. Waits if it is still to come."""
        part = job.speech.next_part()
        return None if part is None else self._decoder.prepare(part)

    def _queue_next_part(self, job: SpeechJob, part: Future[Ticket | None]) -> None:
        """Makes the next part, which is prepared, wait for a slot, or ends the job."""
        ticket = error = None
        try:
            ticket = part.result()
        except Exception as raised:  # belongs to this request, whatever it is
            error = failure(raised)
        with self._changed:
            if job not in self._waiting_for_text:  # it was cancelled
                return
            self._waiting_for_text.remove(job)
            self._changed.notify_all()
            if error is None:
                job.mark(job.speech.part)
                job.put(job.speech.silence)
            if ticket is None:
                job.end(error)
                return
            job.ticket = ticket
            self._waiting_for_slot.append(job)
