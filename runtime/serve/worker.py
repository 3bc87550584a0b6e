"""`Worker`: the engine thread of one bundle, and the methods that request handlers call."""

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from threading import Condition, Thread
from typing import Any, Generic, TypeVar

from voxport.runtime.serve.errors import ApiError, draining, engine_failed, overloaded
from voxport.runtime.serve.fair_queue import FairQueue
from voxport.runtime.serve.job import Job
from voxport.runtime.serve.limits import Limits
from voxport.runtime.serve.metrics import Metrics

TICK_S = 0.25  # between checks of the time that requests have waited
log = logging.getLogger(__name__)


AnyJob = TypeVar("AnyJob", bound=Job[Any])  # any result


class Worker(ABC, Generic[AnyJob]):
    """One thread calls the engine, one step after another; handlers call the other methods.

    `_changed` guards what both use, and wakes the thread.
    """

    def __init__(self, name: str, limits: Limits, metrics: Metrics):
        self.name, self._limits, self._metrics = name, limits, metrics
        self._waiting: FairQueue[AnyJob] = FairQueue()
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
            for job in self._waiting.remove(lambda job: True):
                job.end(draining())
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
            self._check_open()

    def _check_open(self) -> None:
        """Called with `_changed`. Raises ApiError."""
        if self._has_failed:
            raise engine_failed(self.name)
        if not self.is_open:
            raise draining()

    def _check_room(self, key: str, started: Iterable[AnyJob]) -> None:
        """Called with `_changed`. Raises ApiError if a request of the key has no place in the queue.

        Keys with requests, also with `started` ones, have equal numbers of places.
        """
        self._check_open()
        keys = {job.key for job in started} | self._waiting.keys | {key}
        places = math.ceil(self._limits.waiting / len(keys))
        if len(self._waiting) >= self._limits.waiting or self._waiting.count(key) >= places:
            message = f"{len(self._waiting)} requests wait for {self.name}; try again later"
            raise overloaded(message, self._queued_s())

    def _end_waiting(self) -> None:
        """Ends queued jobs that are cancelled or waited too long. Called with `_changed`."""
        now, limit = time.monotonic(), self._limits.queue_s
        for job in self._waiting.remove(lambda job: job.is_cancelled):
            self._end_early(job, "client")
        for job in self._waiting.remove(lambda job: now - job.submitted_at > limit):
            error = overloaded(f"no slot in {limit:g} s; try again later", self._queued_s())
            self._end_early(job, "queue_timeout", error)

    def _end_early(self, job: AnyJob, reason: str, error: ApiError | None = None) -> None:
        self._metrics.cancelled.labels(reason).inc()
        job.end(error)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @abstractmethod
    def _queued_s(self) -> float:
        """Estimated seconds to compute the rest of all jobs. Called with `_changed`."""

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
            jobs = [*self._waiting.remove(lambda job: True), *self._active_jobs()]
            self._clear_jobs()
            self._is_draining, self._has_failed = True, failed
        for job in jobs:
            job.end(engine_failed(self.name) if failed else draining())
