"""`BatchedDecoder`: serves requests from a queue in the slots of one batched stream.

A slot can be filled and freed at any step. A step computes one frame for all occupied slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from threading import Lock
from typing import Generic, Protocol, TypeVar

import numpy as np

Request = TypeVar("Request")
RequestIn = TypeVar("RequestIn", contravariant=True)
Fill = Callable[[int], None]  # starts a prepared request in a slot; leaves the slot free where it raises


class Status(StrEnum):
    """State of a request. The last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended by the model"
    CUT_OFF = "stopped at a limit"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True)
class SlotOutput:
    """Result of one step for one slot: `samples` float32 [n] or None, and the final status after the last
    step.
    """

    samples: np.ndarray | None
    final: Status | None = None


class SlotDecoder(Protocol[RequestIn]):
    """The operations of a family on the slots of one batched stream. A step calls feed, fills slots, then
    decode and take.

    `feed` and `decode` serve all occupied slots in one call; the others concern one slot.
    """

    @property
    def slots(self) -> int: ...

    def prepare(self, request: RequestIn) -> Fill:
        """Checks a request and returns the function that starts it in a free slot.

        Thread-safe. Raises UsageError.
        """

    def feed(self) -> None:
        """Feeds the last frame of each occupied slot back to the model."""

    def decode(self) -> None:
        """Computes the codes of the next frame of each occupied slot. At least one slot is occupied."""

    def take(self, slot: int) -> SlotOutput:
        """The samples that are complete after this frame."""

    def free(self, slot: int) -> None:
        """Makes an occupied slot free."""


class Ticket:
    """Handle of a submitted request. `error` is set where the status is FAILED."""

    def __init__(self, fill: Fill):
        self.fill, self.status = fill, Status.QUEUED
        self.error: Exception | None = None
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        return self.status not in (Status.QUEUED, Status.RUNNING)

    def cancel(self) -> None:
        """Frees the request's slot, or its place in the queue, at the next step. Thread-safe."""
        self.is_cancelled = True


class BatchedDecoder(Generic[Request]):
    """Fills slots from a queue and steps them together.

    Any thread may call `submit` and `Ticket.cancel` at any time; one thread calls `step` or `run`. An error
    of one request ends that request only; an error of a call for all slots ends all running requests, and the
    queue goes on.
    """

    def __init__(self, slots: SlotDecoder[Request]):
        self._slots, self._lock = slots, Lock()
        self._queue: deque[Ticket] = deque()
        self._running: dict[int, Ticket] = {}  # by slot

    def submit(self, request: Request) -> Ticket:
        """Adds a request to the queue. Raises UsageError where it cannot be served."""
        ticket = Ticket(self._slots.prepare(request))
        with self._lock:
            self._queue.append(ticket)
        return ticket

    def unfinished(self) -> list[Ticket]:
        """Running and queued requests."""
        with self._lock:
            return [*self._running.values(), *self._queue]

    def step(self) -> list[tuple[Ticket, np.ndarray]]:
        """Runs one frame for all occupied slots.

        Returns the samples float32 [n] that became complete, by slot.
        """
        self._drop_cancelled()
        self._call_for_all(self._slots.feed)
        self._fill_slots()
        self._call_for_all(self._slots.decode)
        pieces = []
        for slot, ticket in sorted(self._running.items()):
            try:
                output = self._slots.take(slot)
            except Exception as error:  # belongs to this request, whatever it is
                self._finish(slot, Status.FAILED, error)
                continue
            if output.samples is not None:
                pieces.append((ticket, output.samples))
            if output.final:
                self._finish(slot, output.final)
        return pieces

    def run(self) -> Iterator[tuple[Ticket, np.ndarray]]:
        """Steps until no request is left, and yields what each step returns.

        Raises the error of a request that failed.
        """
        while tickets := self.unfinished():
            yield from self.step()
            for ticket in tickets:
                if ticket.error:
                    raise ticket.error

    def _drop_cancelled(self) -> None:
        for slot, ticket in list(self._running.items()):
            if ticket.is_cancelled:
                self._finish(slot, Status.CANCELLED)
        with self._lock:
            for ticket in [ticket for ticket in self._queue if ticket.is_cancelled]:
                self._queue.remove(ticket)
                ticket.status = Status.CANCELLED

    def _fill_slots(self) -> None:
        for slot in range(self._slots.slots):
            while slot not in self._running and (ticket := self._next()):
                try:
                    ticket.fill(slot)
                except Exception as error:  # belongs to this request, whatever it is
                    ticket.status, ticket.error = Status.FAILED, error
                else:
                    ticket.status, self._running[slot] = Status.RUNNING, ticket

    def _next(self) -> Ticket | None:
        with self._lock:
            return self._queue.popleft() if self._queue else None

    def _call_for_all(self, call: Callable[[], None]) -> None:
        if not self._running:
            return
        try:
            call()
        except Exception as error:  # the state of every running request is unknown now
            for slot in list(self._running):
                self._finish(slot, Status.FAILED, error)

    def _finish(self, slot: int, status: Status, error: Exception | None = None) -> None:
        self._slots.free(slot)
        ticket = self._running.pop(slot)
        ticket.status, ticket.error = status, error
