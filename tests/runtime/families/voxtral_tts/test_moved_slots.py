"""Requests that join, leave and are cancelled at any step: the samples of each are those of it alone."""

from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runtime.toy_speech import DIM, Prompts, ToyEngine, toy_decoder

from voxport.runtime import batching, utterance
from voxport.runtime.batching import BatchedDecoder, Status, Ticket
from voxport.runtime.engines.base import Arrays, Stream
from voxport.runtime.families.voxtral_tts.task import VoxtralSlots
from voxport.runtime.slots import move_states
from voxport.runtime.speech_request import SpeechRequest


class Job(NamedTuple):
    """Comes `wait` steps after the last job, and is cancelled `cancel` steps later, or never."""

    letters: int
    frames: int
    wait: int = 0
    cancel: int | None = None

    @property
    def request(self) -> SpeechRequest:
        return SpeechRequest("a" * self.letters, seed=self.frames, max_frames=self.frames, chunk_frames=1)


def new_decoder(slots: int, engine: ToyEngine) -> BatchedDecoder[SpeechRequest]:
    return toy_decoder(slots, engine, Prompts(voice_rows=3))


@cache
def single_request(letters: int, frames: int) -> np.ndarray:
    decoder = new_decoder(1, ToyEngine())
    decoder.submit(Job(letters, frames).request)
    return np.concatenate([samples for _, samples in decoder.run()])


def spoken(decoder: BatchedDecoder[SpeechRequest], jobs: list[Job]) -> list[tuple[Ticket, np.ndarray]]:
    starts, tickets, step = list(accumulate(job.wait for job in jobs)), list[Ticket](), 0
    pieces: dict[Ticket, list[np.ndarray]] = {}
    while len(tickets) < len(jobs) or decoder.unfinished():
        while len(tickets) < len(jobs) and starts[len(tickets)] == step:
            tickets.append(decoder.submit(jobs[len(tickets)].request))
            pieces[tickets[-1]] = [np.zeros(0, np.float32)]
        for job, start, ticket in zip(jobs, starts, tickets, strict=False):
            if job.cancel is not None and start + job.cancel == step:
                ticket.cancel()
        for ticket, samples in decoder.step():
            pieces[ticket] += [] if samples is None else [samples]
        step += 1
    return [(ticket, np.concatenate(found)) for ticket, found in pieces.items()]


def differing(decoder: BatchedDecoder[SpeechRequest], jobs: list[Job]) -> list[Job]:
    """Jobs whose samples are not those of the job alone. A cancelled one has the first of them."""
    found = []
    for job, (ticket, samples) in zip(jobs, spoken(decoder, jobs), strict=True):
        expected = single_request(job.letters, job.frames)
        if ticket.status is Status.CANCELLED:
            expected = expected[: len(samples)]
        if ticket.status is Status.FAILED or not np.array_equal(samples, expected):
            found.append(job)
    return found


JOBS = st.builds(
    Job,
    letters=st.integers(1, 12),
    frames=st.integers(1, 8),
    wait=st.integers(0, 4),
    cancel=st.none() | st.integers(0, 9),
)
MANY = [Job(9, 3), Job(7, 8), Job(12, 8, 1), Job(5, 8, 3), Job(11, 4, 2), Job(8, 8, 1, cancel=6), Job(10, 7)]


@settings(max_examples=40)
@given(jobs=st.lists(JOBS, min_size=1, max_size=9), slots=st.integers(1, 5), rows=st.integers(1, 6))
def test_requests_that_come_and_go_have_the_samples_of_each_alone(
    jobs: list[Any], slots: int, rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batching, "PIECE_ROWS", rows)
        assert differing(new_decoder(slots, ToyEngine()), jobs) == []


def another_direction(batch: Stream, source: int, target: int, positions: int) -> Stream:
    MOVE(batch, target, source, positions)
    return batch.slot(target)


def one_row_less(batch: Stream, source: int, target: int, positions: int) -> Stream:
    return MOVE(batch, source, target, positions - 1)


def without_codec(batch: Stream, source: int, target: int, positions: int) -> Stream:
    return MOVE(batch, source, target, positions, "prefill")


def not_at_all(batch: Stream, source: int, target: int, positions: int) -> Stream:
    return batch.slot(target)


def also_the_slot_behind(slots: VoxtralSlots, count: int) -> None:
    """The step of a batch with a row for each slot: it writes to row 0 of the slots that have no frame."""
    FEED(slots, count)
    if count in slots._utterances:
        inputs = {"embeddings": np.ones((1, 1, DIM), np.float32), "position": np.array([0])}
        slots._stream.slot(count).run("decode_step", inputs)


def swapped(slots: VoxtralSlots, count: int) -> None:
    """The codes of each slot go to another one."""
    DECODE(slots, count)
    spoken = slots._from(count, 0)
    codes = [each.codes for each in spoken]
    for each, other in zip(spoken, reversed(codes), strict=True):
        each.codes = other


MOVE, FEED, DECODE = move_states, VoxtralSlots.feed, VoxtralSlots.decode
FAULTS = [
    (utterance, "move_states", another_direction),
    (utterance, "move_states", one_row_less),
    (utterance, "move_states", without_codec),
    (utterance, "move_states", not_at_all),
    (VoxtralSlots, "feed", also_the_slot_behind),
    (VoxtralSlots, "decode", swapped),
]


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_a_fault_in_a_move_and_a_step_of_an_incomplete_prompt_are_found(
    monkeypatch: pytest.MonkeyPatch, fault: tuple[Any, str, Any] | None
) -> None:
    monkeypatch.setattr(batching, "PIECE_ROWS", 4)
    if fault:
        monkeypatch.setattr(*fault)
    assert bool(differing(new_decoder(4, ToyEngine()), MANY)) == bool(fault)


@pytest.mark.parametrize("active", [1, 2, 4])
def test_a_call_has_a_batch_of_the_active_slots(active: int) -> None:
    engine = ToyEngine()
    decoder = new_decoder(4, engine)
    tickets = [decoder.submit(Job(3, 14).request) for _ in range(active)]
    while any(ticket.status is Status.QUEUED for ticket in tickets):
        decoder.step()
    engine.batches.clear()
    decoder.step()
    batches = {component: batch for component, batch in engine.batches if component != "codec_step"}
    assert batches == dict.fromkeys(("embed_codes", "decode_step", "acoustic_step"), active)


def test_after_the_others_left_a_call_has_a_batch_of_one() -> None:
    engine = ToyEngine()
    decoder = new_decoder(4, engine)
    first, last = decoder.submit(Job(3, 14).request), decoder.submit(Job(4, 14).request)
    while last.status is Status.QUEUED:
        decoder.step()
    first.cancel()
    engine.batches.clear()
    decoder.step()
    assert engine.batches["decode_step", 1] == 1 and not engine.batches["decode_step", 2]


def prefilled_rows(engine: ToyEngine) -> list[int]:
    """Rows of each call of `prefill` from now on."""
    rows: list[int] = []

    def count(component: str, inputs: Arrays) -> None:
        if component == "prefill":
            rows.append(inputs["embeddings"].shape[1])

    engine.fault = count
    return rows


def test_a_prompt_is_read_in_pieces_while_others_are_active_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "PIECE_ROWS", 4)
    engine = ToyEngine()
    decoder, rows = new_decoder(2, engine), prefilled_rows(engine)
    first, second = decoder.submit(Job(9, 14).request), decoder.submit(Job(12, 2).request)
    while first.status is Status.QUEUED:
        decoder.step()
    assert rows == [6, 10]
    for _ in range(3):
        rows.clear()
        decoder.step()
        assert len(rows) == 1 and rows[0] <= 4
    first.cancel()
    rows.clear()
    decoder.step()
    assert rows == [9] and second.status is Status.RUNNING


def test_a_request_is_cancelled_between_two_pieces_of_its_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "PIECE_ROWS", 4)
    engine = ToyEngine()
    decoder, rows = new_decoder(2, engine), prefilled_rows(engine)
    first, second = decoder.submit(Job(3, 14).request), decoder.submit(Job(12, 2).request)
    while first.status is Status.QUEUED:
        decoder.step()
    decoder.step()
    second.cancel()
    rows.clear()
    assert (second, None) in decoder.step()
    assert not rows and decoder.unfinished() == [first]
    third = decoder.submit(Job(5, 2).request)
    found = [samples for ticket, samples in decoder.run() if ticket is third]
    np.testing.assert_array_equal(np.concatenate(found), single_request(5, 2))


def test_a_failed_move_ends_only_the_request_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("move")

    monkeypatch.setattr(utterance, "move_states", fail)
    jobs = [Job(3, 2), Job(4, 9), Job(5, 9)]
    results = spoken(new_decoder(3, ToyEngine()), jobs)
    assert [ticket.status for ticket, _ in results].count(Status.FAILED) >= 1
    for job, (ticket, samples) in zip(jobs, results, strict=True):
        np.testing.assert_array_equal(samples, single_request(job.letters, job.frames)[: len(samples)])
        assert ticket.is_done
