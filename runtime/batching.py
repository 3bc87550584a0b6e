"""`BatchedDecoder`: serves requests from a queue in the slots of one batched stream.

A slot can be filled and freed at any step. A step computes one frame for all occupied slots.
"""

from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from threading import Condition
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

Request = TypeVar("Request")
RequestIn = TypeVar("RequestIn", contravariant=True)
Fill = Callable[[int], None]  # starts a prepared request in a slot; leaves the slot free where it raises


class Status(StrEnum):
    """State of a request. The last six are final.

    END: the model ended the speech. BUDGET: it is longer than its text explains. CACHE: the cache is full.
    LIMIT: it has as many frames as were asked for.
    """

    QUEUED = "queued"
    RUNNING = "running"
    END = "end"
    BUDGET = "budget"
    CACHE = "cache"
    LIMIT = "limit"
    CANCELLED = "cancelled"
    FAILED = "failed"


class SlotOutput(NamedTuple):
    """Result of one step for one slot: `samples` float32 [n] or None, and the final status after the last
    step.
    """

    samples: np.ndarray | None
    final: Status | None = None


class SlotDecoder(Protocol[RequestIn]):
    """The operations of a family on the slots of one batched stream. A step calls feed, fills a slot, then
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


class StepEvent(NamedTuple):
    """What one step gives for one request: `samples` float32 [n], or None where it ends without samples.

    `ticket.is_done` tells whether this is the last event of the request.
    """

    ticket: Ticket
    samples: np.ndarray | None


class BatchedDecoder(Generic[Request]):
    """Fills slots from a queue and steps them together.

    Any thread may call `submit`, `unfinished` and `Ticket.cancel` at any time; one thread calls `wait`,
    `step` or `run`. An error of one request ends that request only; an error of a call for all slots ends all
    running requests, and the queue goes on.
    """

    def __init__(self, slots: SlotDecoder[Request]):
        self._slots = slots
        self._changed = Condition()  # its lock guards every change of the two collections
        self._queue: deque[Ticket] = deque()  # a request stays here until its prompt has been read
        self._running: dict[int, Ticket] = {}  # by slot
        self._events: list[StepEvent] = []  # of the step in progress

    def submit(self, request: Request) -> Ticket:
        """Adds a request to the queue. Raises UsageError where it cannot be served."""
        ticket = Ticket(self._slots.prepare(request))
        with self._changed:
            self._queue.append(ticket)
            self._changed.notify_all()
        return ticket

    def unfinished(self) -> list[Ticket]:
        """Running and queued requests."""
        with self._changed:
            return [*self._running.values(), *self._queue]

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until there is an unfinished request, at most `timeout` seconds.

        Returns whether there is one.
        """
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._running or self._queue), timeout)

    def step(self) -> list[StepEvent]:
        """Starts at most one queued request and runs one frame for all occupied slots.

        Returns an event for each request that has new samples or has ended.
        """
        for ticket in list(self._running.values()):
            if ticket.is_cancelled:
                self._end(ticket, Status.CANCELLED)
        self._call_for_all(self._slots.feed)
        self._drop_cancelled()
        self._fill_slot()
        self._call_for_all(self._slots.decode)
        for slot in sorted(self._running):
            self._take(slot)
        events, self._events = self._events, []
        return events

    def run(self) -> Iterator[tuple[Ticket, np.ndarray]]:
        """Steps until no request is left, and yields the samples float32 [n] of each step.

        Raises the error of a request that failed.
        """
        while self.unfinished():
            events = self.step()
            yield from ((ticket, samples) for ticket, samples in events if samples is not None)
            for ticket, _ in events:
                if ticket.error:
                    raise ticket.error

    def _drop_cancelled(self) -> None:
        """Ends cancelled requests of the queue. Precedes a prompt, which takes longer than any other call."""
        with self._changed:
            for ticket in [ticket for ticket in self._queue if ticket.is_cancelled]:
                self._queue.remove(ticket)
                self._end(ticket, Status.CANCELLED)

    def _fill_slot(self) -> None:
        """Starts the next request in a free slot. Only one, because running requests wait for its prompt."""
        slot = next((slot for slot in range(self._slots.slots) if slot not in self._running), None)
        if slot is None or not self._queue:
            return
        ticket, error = self._queue[0], None
        try:
            ticket.fill(slot)
        except Exception as raised:  # belongs to this request, whatever it is
            error = raised
        with self._changed:
            self._queue.popleft()
            if error:
                self._end(ticket, Status.FAILED, error)
            else:
                ticket.status, self._running[slot] = Status.RUNNING, ticket

    def _call_for_all(self, call: Callable[[], None]) -> None:
        if not self._running:
            return
        try:
            call()
        except Exception as error:  # the state of every running request is unknown now
            for ticket in list(self._running.values()):
                self._end(ticket, Status.FAILED, error)

    def _take(self, slot: int) -> None:
        ticket = self._running[slot]
        try:
            samples, final = self._slots.take(slot)
        except Exception as error:  # belongs to this request, whatever it is
            self._end(ticket, Status.FAILED, error)
            return
        if final:
            self._end(ticket, final, samples=samples)
        elif samples is not None:
            self._events.append(StepEvent(ticket, samples))

    def _end(
        self,
        ticket: Ticket,
        status: Status,
        error: Exception | None = None,
        samples: np.ndarray | None = None,
    ) -> None:
        """Ends a queued or running request and frees its slot. An error of `free` is one of this request."""
        with self._changed:
            for slot in [slot for slot, running in self._running.items() if running is ticket]:
                del self._running[slot]
                try:
                    self._slots.free(slot)
                except Exception as raised:  # belongs to this request, whatever it is
                    status, error = Status.FAILED, error or raised
            ticket.error, ticket.status = error, status  # in this order: other threads read both
            self._events.append(StepEvent(ticket, samples))
