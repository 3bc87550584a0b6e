"""`Worker`: the engine thread of one bundle. `Job`: the work of one client, between thread and handler."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Lock, Thread
from typing import Any, Generic, TypeVar

from voxport.runtime.serve.errors import ApiError, draining, engine_failed, overloaded
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics

TICK_S = 0.25  # between checks of the time that requests have waited
Result = TypeVar("Result")
log = logging.getLogger(__name__)


class Job(Generic[Result]):
    """The engine thread calls `end`, a coroutine calls `read`. Both may call `cancel`."""

    def __init__(self, wake: Callable[[], None]):
        """`wake` wakes the engine thread. Called on the event loop."""
        self._wake = wake
        self.submitted_at, self.is_cancelled = time.monotonic(), False
        self._lock, self._is_done = Lock(), False
        self._loop = asyncio.get_running_loop()
        self._results: asyncio.Queue[Result | ApiError | None] = asyncio.Queue()

    def end(self, error: ApiError | None = None) -> None:
        """Nothing follows. The first call counts."""
        with self._lock:
            if not self._is_done:
                self._is_done = True
                self._send(error)

    async def read(self) -> Result | None:
        """The next result; None at the end. Raises ApiError."""
        result = await self._results.get()
        if isinstance(result, ApiError):
            raise result
        return result

    def _send(self, result: Result | ApiError | None) -> None:
        self._on_loop(self._results.put_nowait, result)

    def _on_loop(self, call: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop has ended, and its readers with it
            self._loop.call_soon_threadsafe(call, *arguments)


AnyJob = TypeVar("AnyJob", bound=Job[Any])  # any result


class Worker(ABC, Generic[AnyJob]):
    """One thread calls the engine, one step after another; handlers call the other methods.

    Requests wait in one queue: first come, first served. `_changed` guards what both sides use, and wakes the
    thread.
    """

    def __init__(self, name: str, limits: Limits, metrics: Metrics):
        self.name, self._limits, self._metrics = name, limits, metrics
        self.opened_at = int(time.time())
        self._waiting: deque[AnyJob] = deque()
        self._changed = Condition()
        self._must_stop = self._is_draining = self._is_warm = self._has_failed = False
        for metric in (metrics.waiting, metrics.slots_busy):  # rows of /metrics in the order of the bundles
            metric.labels(name).set(0)
        self._thread = Thread(target=self._run, name=f"engine of {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether new work is taken; it waits until the worker is ready."""
        return self._thread.is_alive() and not self._is_draining

    @property
    def is_ready(self) -> bool:
        return self.is_open and self._is_warm

    @property
    def is_idle(self) -> bool:
        with self._changed:
            return not (self._waiting or self._active_jobs())

    def drain(self) -> None:
        """Refuses new work; what waits ends with an error."""
        with self._changed:
            self._is_draining = True
            for job in self._waiting:
                job.end(draining())
            self._waiting.clear()
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the thread; what runs ends with an error."""
        with self._changed:
            self._must_stop = self._is_draining = True
            self._changed.notify_all()
        if self._thread.ident:
            self._thread.join(timeout=10)

    def check_open(self) -> None:
        """Raises ApiError if new work is not taken."""
        with self._changed:
            if self._has_failed:
                raise engine_failed(self.name)
            if not self.is_open:
                raise draining()

    def check_room(self) -> None:
        """Raises ApiError if a request has no place in the queue."""
        with self._changed:
            self.check_open()
            if len(self._waiting) >= self._limits.waiting:
                message = f"{len(self._waiting)} requests wait for {self.name}; try again later"
                raise overloaded(message)

    def _enqueue(self, job: AnyJob) -> None:
        """Called by handlers. Raises ApiError if there is no room."""
        with self._changed:
            self.check_room()
            self._waiting.append(job)
            self._changed.notify_all()

    def _take_waiting(self) -> AnyJob:
        """Takes the first job out of the queue. Called with `_changed`."""
        job = self._waiting.popleft()
        self._metrics.queue_seconds.labels(self.name).observe(time.monotonic() - job.submitted_at)
        return job

    def _end_waiting(self) -> None:
        """Ends queued jobs that are cancelled or waited too long. Called with `_changed`."""
        now, limit = time.monotonic(), self._limits.queue_s
        for job in list(self._waiting):
            if job.is_cancelled:
                self._waiting.remove(job)
                self._end_early(job, "client")
            elif now - job.submitted_at > limit:
                self._waiting.remove(job)
                error = overloaded(f"no slot in {limit:g} s; try again later")
                self._end_early(job, "queue_timeout", error)

    def _end_early(self, job: AnyJob, reason: str, error: ApiError | None = None) -> None:
        self._metrics.cancelled.labels(reason).inc()
        job.end(error)

    def _count_pass(self, started: float, frames: float) -> None:
        """Adds a call of the engine to the metrics. `started`: in seconds of `time.perf_counter`."""
        self._metrics.pass_seconds.labels(self.name).observe(time.perf_counter() - started)
        self._metrics.frames.labels(self.name).inc(frames)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @abstractmethod
    def _active_jobs(self) -> list[AnyJob]:
        """Jobs that have left the queue. Called with `_changed`."""

    @abstractmethod
    def _clear_jobs(self) -> None:
        """Empties the lists of active jobs, when the thread has ended. Called with `_changed`."""

    @abstractmethod
    def _warm_up(self) -> None:
        """Calls the engine once, so that the first request does not wait for its memory and files."""

    @abstractmethod
    def _run_once(self) -> None:
        """Calls the engine for one step, or waits for work. An exception ends the thread."""

    def _run(self) -> None:
        failed = False
        try:
            self._warm_up()
            self._is_warm = True
            while not self._must_stop:
                self._run_once()
        except Exception:  # nothing is known about the engine now: the bundle is no longer served
            log.exception("%s: the engine thread ended", self.name)
            failed = True
        with self._changed:
            jobs = [*self._waiting, *self._active_jobs()]
            self._waiting.clear()
            self._clear_jobs()
            self._is_draining, self._has_failed = True, failed
        for job in jobs:
            job.end(engine_failed(self.name) if failed else draining())
