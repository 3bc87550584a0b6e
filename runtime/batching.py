"""`BatchedDecoder`: serves requests from a queue in the slots of one batched stream.

A step reads a piece of one new prompt and computes one frame for all active slots. The active slots are the
first ones, so a call has a batch of as many slots as are active. The slot behind them holds the prompt that
is being read.
"""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from threading import Condition
from typing import Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from voxport.bundle.manifest import ComponentEntry
from voxport.runtime.slots import Slots

Request = TypeVar("Request")
RequestIn = TypeVar("RequestIn", contravariant=True)
RowLimit = Callable[[], int]  # the most rows of a prompt that may be read now

# Reads the prompt of a prepared request into a slot. Asks for the limit before each piece of rows, and yields
# between pieces. A family may read every prompt whole, as one piece.
Fill = Callable[[int, RowLimit], Iterator[None]]

PIECE_ROWS = 16  # rows of a prompt that a step reads while other requests wait for their next frame


class Status(StrEnum):
    """State of a request. All but the first two are final.

    END: the model ended the speech. BUDGET: it is longer than its text explains. REPETITION, SILENCE: see
    `RunawayGuard`. CACHE: the cache is full. LIMIT: it has as many frames as were asked for.
    """

    QUEUED = "queued"
    RUNNING = "running"
    END = "end"
    BUDGET = "budget"
    REPETITION = "repetition"
    SILENCE = "silence"
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
    """The operations of a family on the slots of one batched stream. A step calls feed, reads a piece of a
    prompt, then calls decode and take.

    `feed` and `decode` serve `count` slots from `first` on in one call and change no other; the others
    concern one slot. `first` is 0, except if such a call has raised: it is then repeated for each slot
    alone. So one that raises leaves positions, random numbers and codes as they were.
    """

    @property
    def slots(self) -> int: ...

    def prepare(self, request: RequestIn) -> Fill:
        """Checks a request and returns the function that reads its prompt into a free slot.

        Thread-safe. Raises UsageError.
        """

    def feed(self, count: int, first: int = 0) -> None:
        """Feeds the last frame of each of the slots back to the model."""

    def decode(self, count: int, first: int = 0) -> None:
        """Computes the codes of the next frame of each of the slots."""

    def take(self, slot: int) -> SlotOutput:
        """The samples that are complete after this frame."""

    def free(self, slot: int) -> None:
        """Makes a slot free. Its prompt may be incomplete, or nothing of it read."""

    def move(self, source: int, target: int) -> None:
        """Moves a request, whose prompt may be incomplete, to a free slot. Not called if `slots` is 1."""


class SlotCall(Protocol):
    """`SlotDecoder.feed` or `SlotDecoder.decode`."""

    def __call__(self, count: int, first: int = 0) -> None: ...


@runtime_checkable
class CodeSlots(SlotDecoder[RequestIn], Protocol):
    """Slots whose frames are codes. Teacher forcing replaces them between `decode` and `take`."""

    def codes(self, slot: int) -> np.ndarray:
        """Codes int64 [K] of the last frame."""

    def replace_codes(self, slot: int, codes: np.ndarray) -> None:
        """Goes on with codes int64 [K] in place of the codes of the last frame."""


class Ticket:
    """Handle of a submitted request. `error` is set if the status is FAILED."""

    def __init__(self, fill: Fill):
        self.fill: Fill | None = fill  # None when the prompt is read: it may hold the rows of a voice
        self.status = Status.QUEUED
        self.error: Exception | None = None
        self.is_cancelled = False

    @property
    def is_done(self) -> bool:
        return self.status not in (Status.QUEUED, Status.RUNNING)

    def cancel(self) -> None:
        """Frees the request's slot, or its place in the queue, at the next step. Thread-safe."""
        self.is_cancelled = True


class StepEvent(NamedTuple):
    """The result of one step for one request.

    `samples` are float32 [n], or None if the request ends without samples. `ticket.is_done` is True for the
    last event of the request.
    """

    ticket: Ticket
    samples: np.ndarray | None


@dataclass
class _PromptReading:
    """A request whose prompt is being read in a slot."""

    ticket: Ticket
    slot: int
    pieces: Iterator[None]


class BatchedDecoder(Generic[Request]):
    """Fills slots from a queue and steps them together.

    Any thread may call `prepare`, `enqueue`, `submit`, `unfinished` and `Ticket.cancel` at any time; one
    thread calls `wait`, `step` or `run`. An error of one request ends that request only. After an error of a
    call for all slots, each slot has a call of its own, and the requests end whose own call raises.
    """

    def __init__(self, decoder: SlotDecoder[Request]):
        self._decoder = decoder
        self._changed = Condition()  # its lock guards the queue, and the end of requests
        self._queue: deque[Ticket] = deque()  # a request stays here until its prompt has been read
        self._running: Slots[Ticket] = Slots(decoder.slots, decoder.move)
        self._reading: _PromptReading | None = None  # the first request of the queue, behind the running ones
        self._events: list[StepEvent] = []  # in the current step

    def prepare(self, request: Request) -> Ticket:
        """Checks a request, which is not queued yet. Raises UsageError if it cannot be served."""
        return Ticket(self._decoder.prepare(request))

    def enqueue(self, ticket: Ticket) -> None:
        """Adds a prepared request to the queue."""
        with self._changed:
            self._queue.append(ticket)
            self._changed.notify_all()

    def submit(self, request: Request) -> Ticket:
        """Prepares a request and adds it to the queue. Raises UsageError."""
        ticket = self.prepare(request)
        self.enqueue(ticket)
        return ticket

    def unfinished(self) -> list[Ticket]:
        """Running and queued requests."""
        with self._changed:
            return [*self._running.items.values(), *self._queue]

    def wait(self, timeout: float | None = None) -> bool:
        """Blocks until there is an unfinished request, at most `timeout` seconds.

        Returns whether there is one.
        """
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._running or self._queue), timeout)

    def step(self) -> list[StepEvent]:
        """Reads a piece of at most one prompt and runs one frame for all active slots.

        A request is active from the step that reads the last piece. Returns an event for each request that
        has new samples or has ended.
        """
        for ticket in list(self._running.items.values()):
            if ticket.is_cancelled:
                self._end(ticket, Status.CANCELLED)
        self._compact_slots()
        self._call_for_all(self._decoder.feed)
        self._end_cancelled()
        self._compact_slots()
        self._read_prompt()
        self._call_for_all(self._decoder.decode)
        for slot in sorted(self._running.items):
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

    def _end_cancelled(self) -> None:
        """Ends cancelled requests of the queue. Precedes a prompt, which may take longer than other calls."""
        with self._changed:
            for ticket in [ticket for ticket in self._queue if ticket.is_cancelled]:
                self._end(ticket, Status.CANCELLED)

    def _read_prompt(self) -> None:
        """Reads a piece of the prompt of the first request in the queue. Running requests wait for it."""
        slot = len(self._running)
        if not self._queue or not self._running.has_room:
            return
        ticket = self._queue[0]
        try:
            if not self._reading:
                assert ticket.fill is not None  # a request is read once
                self._reading = _PromptReading(ticket, slot, ticket.fill(slot, self._row_limit))
            is_read = next(self._reading.pieces, True)  # each piece but the last yields None
        except Exception as error:  # belongs to this request, whatever it is
            self._end(ticket, Status.FAILED, error)
            return
        if is_read:
            with self._changed:
                self._queue.popleft()
                self._reading = None
                ticket.status, ticket.fill = Status.RUNNING, None
                self._running.take(ticket)

    def _row_limit(self) -> int:
        return PIECE_ROWS if self._running else sys.maxsize

    def _compact_slots(self) -> None:
        """Moves requests until the running ones are in the first slots and the next slot is being read."""
        while errors := self._running.compact():
            for ticket, error in errors.items():
                self._end(ticket, Status.FAILED, error)
        reading, slot = self._reading, len(self._running)
        if reading and reading.slot != slot:
            source, reading.slot = reading.slot, slot
            try:
                self._decoder.move(source, slot)
            except Exception as error:  # the state of this request is not known now
                self._end(reading.ticket, Status.FAILED, error)

    def _call_for_all(self, call: SlotCall) -> None:
        slots = sorted(self._running.items)
        for slot, error in self._running.run(lambda some: call(len(some), some[0]), slots).items():
            self._end(self._running.items[slot], Status.FAILED, error)

    def _take(self, slot: int) -> None:
        ticket = self._running.items[slot]
        try:
            samples, final = self._decoder.take(slot)
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
            for slot in self._remove(ticket):
                try:
                    self._decoder.free(slot)
                except Exception as raised:  # belongs to this request, whatever it is
                    status, error = Status.FAILED, error or raised
            ticket.error, ticket.status = error, status  # in this order: other threads read both
            self._events.append(StepEvent(ticket, samples))

    def _remove(self, ticket: Ticket) -> list[int]:
        """Removes a request from the queue and from its slot. Returns the slot, if it has one."""
        if ticket in self._queue:
            self._queue.remove(ticket)
        slot = self._running.free(ticket)
        slots = [] if slot is None else [slot]
        if self._reading and self._reading.ticket is ticket:
            slots.append(self._reading.slot)
            self._reading = None
        return slots


def max_slots(components: Iterable[ComponentEntry], batched: Iterable[str]) -> int:
    """Slots that one batch may have, if one call runs each of the components `batched` for all slots."""
    found = {entry.name: entry.max_batch for entry in components}
    return min((found.get(name, 1) for name in batched), default=1)
