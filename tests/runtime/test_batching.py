"""Requests in the slots of one batch give the same samples as separate requests."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.runtime.prefix_caches import private_prefix_cache
from support.runtime.toy_engine import Fault
from support.runtime.toy_speech import ROWS, Prompts, ToyEngine, toy_slots

from voxport.bundle.errors import UsageError, VoxportError
from voxport.runtime.batching import BatchedDecoder, Status, Ticket
from voxport.runtime.engines.base import Arrays
from voxport.runtime.families.voxtral_tts.decoder import VoxtralPrompt
from voxport.runtime.families.voxtral_tts.task import VoxtralSlots
from voxport.runtime.speech_request import SpeechRequest

MakeDecoder = Callable[..., BatchedDecoder[SpeechRequest]]  # of a number of slots, and a fault


class RefusingPrompts(Prompts):
    def build(self, request: SpeechRequest) -> VoxtralPrompt:
        if request.text == "refused":
            raise UsageError("refused")
        return super().build(request)


def no_fault(component: str, inputs: Arrays) -> None: ...


@pytest.fixture
def decoder() -> MakeDecoder:
    """Makes decoders with the given number of slots on a new toy engine, with one cache of prefixes."""
    prefixes = private_prefix_cache()

    def make(slots: int, fault: Fault = no_fault) -> BatchedDecoder[SpeechRequest]:
        return BatchedDecoder(toy_slots(slots, ToyEngine(fault), RefusingPrompts(), prefixes))

    return make


def requests(*frames: int) -> list[SpeechRequest]:
    """Texts of different lengths and seeds, each spoken for the given number of frames."""
    return [
        SpeechRequest("a" * (3 + index), seed=index, max_frames=count, chunk_frames=2)
        for index, count in enumerate(frames)
    ]


def run(decoder: BatchedDecoder[SpeechRequest], *tickets: Ticket) -> list[list[np.ndarray]]:
    """Steps until the queue and all slots are empty. Returns the pieces of each ticket."""
    pieces: dict[Ticket, list[np.ndarray]] = {ticket: [] for ticket in tickets}
    for ticket, samples in decoder.run():
        pieces[ticket].append(samples)
    return list(pieces.values())


def single_request(decoder: MakeDecoder, request: SpeechRequest) -> list[np.ndarray]:
    one = decoder(1)
    return run(one, one.submit(request))[0]


def assert_same(found: Sequence[Any], expected: list[np.ndarray]) -> None:
    assert [len(piece) for piece in found] == [len(piece) for piece in expected]
    np.testing.assert_array_equal(np.concatenate(found), np.concatenate(expected))


def test_nothing_is_computed_for_requests_that_were_all_cancelled(decoder: MakeDecoder) -> None:
    calls = []
    many = decoder(2, lambda component, inputs: calls.append(component))
    ticket = many.submit(requests(5)[0])
    many.step()
    ticket.cancel()
    calls.clear()
    assert many.step() == [(ticket, None)] and not calls and not many.unfinished()


def test_a_request_that_cannot_be_served_is_refused_when_it_is_submitted(decoder: MakeDecoder) -> None:
    many = decoder(1)
    with pytest.raises(UsageError, match="refused"):
        many.submit(SpeechRequest("refused"))
    assert not many.unfinished()


def test_a_codec_that_fails_ends_one_request_and_frees_its_slot(decoder: MakeDecoder) -> None:
    count = 0

    def third_call_fails(component: str, inputs: Arrays) -> None:
        nonlocal count
        count += component == "codec_step"
        if component == "codec_step" and count == 3:
            raise VoxportError("codec")

    texts, many = requests(6, 6, 2), decoder(2, third_call_fails)
    tickets = [many.submit(text) for text in texts]
    pieces = [pair for _ in range(20) for pair in many.step() if pair.samples is not None]
    assert [ticket.status for ticket in tickets].count(Status.FAILED) == 1
    for ticket, text in zip(tickets, texts, strict=True):
        if ticket.status is not Status.FAILED:
            assert_same(
                [samples for each, samples in pieces if each is ticket], single_request(decoder, text)
            )


@pytest.mark.parametrize("component", ["embed_codes", "decode_step", "acoustic_step"])
def test_a_batch_call_that_fails_once_changes_no_samples(decoder: MakeDecoder, component: str) -> None:
    """Each slot then has a call of its own."""
    sizes = []

    def fault(name: str, inputs: Arrays) -> None:
        sizes.extend([len(next(iter(inputs.values())))] if name == component else [])
        if name == component and sizes.count(2) == 2 and sizes[-1] == 2:
            raise VoxportError("engine")

    texts, many = requests(6, 6, 2), decoder(2, fault)
    found = run(many, *[many.submit(text) for text in texts])
    assert 1 in sizes[sizes.index(2) :]
    for text, pieces in zip(texts, found, strict=True):
        assert_same(pieces, single_request(decoder, text))


def test_a_failed_engine_ends_running_requests_and_the_queue_continues(decoder: MakeDecoder) -> None:
    fails_alone = list[bool]()

    def fault(component: str, inputs: Arrays) -> None:
        if component == "decode_step" and len(inputs["position"]) == 2 and not fails_alone:
            fails_alone[:] = [True, True, False]
            raise VoxportError("engine")
        if component == "decode_step" and fails_alone[:1] == [True]:
            fails_alone.pop(0)
            raise VoxportError("engine")

    texts, many = requests(6, 6, 2), decoder(2, fault)
    tickets = [many.submit(text) for text in texts]
    with pytest.raises(VoxportError, match="engine"):
        list(many.run())
    pieces = [samples for _, samples in many.run()]
    assert [ticket.status for ticket in tickets] == [Status.FAILED, Status.FAILED, Status.LIMIT]
    assert_same(pieces, single_request(decoder, texts[2]))


def test_the_model_ends_an_utterance_or_the_cache_cuts_it_off(decoder: MakeDecoder) -> None:
    texts = [SpeechRequest("a" * (seed % 12), seed=seed, chunk_frames=50, budget=None) for seed in range(30)]
    many = decoder(4)
    tickets = [many.submit(text) for text in texts]
    found = run(many, *tickets)
    assert {ticket.status for ticket in tickets} == {Status.END, Status.CACHE}
    for text, pieces in zip(texts, found, strict=True):
        assert [len(piece) for piece in pieces] == [len(piece) for piece in single_request(decoder, text)]


def test_requests_of_several_threads_are_all_served(decoder: MakeDecoder) -> None:
    texts, many = requests(*[2] * 12), decoder(3)
    with ThreadPoolExecutor(4) as pool:
        tickets = list(pool.map(many.submit, texts))
    for text, pieces in zip(texts, run(many, *tickets), strict=True):
        assert_same(pieces, single_request(decoder, text))


def test_every_request_has_a_last_event_however_it_ends(decoder: MakeDecoder) -> None:
    many = decoder(1)
    too_long, short, cancelled = (many.submit(SpeechRequest("a" * size, max_frames=2)) for size in (40, 3, 4))
    cancelled.cancel()
    events = [event for _ in range(10) for event in many.step()]
    last = {ticket: samples for ticket, samples in events if ticket.is_done}
    assert too_long.status is Status.FAILED and last[too_long] is None
    assert cancelled.status is Status.CANCELLED and last[cancelled] is None
    samples = last[short]
    assert short.status is Status.LIMIT and samples is not None and len(samples)
    assert [ticket for ticket, _ in events].count(short) == 1


def test_a_request_is_visible_while_its_prompt_is_read(decoder: MakeDecoder) -> None:
    seen = list[list[Ticket]]()
    many: BatchedDecoder[SpeechRequest] = decoder(1, lambda *_: seen.append(many.unfinished()))
    ticket = many.submit(requests(1)[0])
    many.step()
    assert seen and all(tickets == [ticket] for tickets in seen)


def test_a_request_that_is_cancelled_during_another_call_reads_no_prompt(decoder: MakeDecoder) -> None:
    calls, late = list[str](), list[Ticket]()

    def cancel_while_fed(component: str, inputs: Arrays) -> None:
        calls.append(component)
        if component == "decode_step":
            for ticket in late:
                ticket.cancel()

    texts, many = requests(9, 9), decoder(2, cancel_while_fed)
    first = many.submit(texts[0])
    while first.status is Status.QUEUED:
        many.step()
    late.append(many.submit(texts[1]))
    calls.clear()
    assert (late[0], None) in many.step()
    assert late[0].status is Status.CANCELLED and "prefill" not in calls


def test_run_raises_the_error_of_a_request_that_was_submitted_and_failed_in_one_step(
    decoder: MakeDecoder,
) -> None:
    late = list[Ticket]()

    def submit_more(component: str, inputs: Arrays) -> None:
        if component == "embed_codes" and not late:
            late.append(many.submit(SpeechRequest("a" * (ROWS + 5))))

    many = decoder(2, submit_more)
    many.submit(requests(4)[0])
    with pytest.raises(UsageError, match="leaves no room"):
        list(many.run())


def test_a_slot_whose_release_fails_ends_its_request(
    decoder: MakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object, slot: int) -> None:
        raise VoxportError("release")

    many = decoder(1)
    ticket = many.submit(requests(1)[0])
    monkeypatch.setattr(VoxtralSlots, "free", fail)
    reading, ((ended, samples),) = many.step(), many.step()  # the voice, then the text and a frame
    assert not reading and ended is ticket and samples is not None and not many.unfinished()
    assert ticket.status is Status.FAILED and "release" in str(ticket.error)


def test_a_step_reads_a_piece_of_one_prompt(decoder: MakeDecoder) -> None:
    calls = []
    many = decoder(4, lambda component, inputs: calls.append(component))
    tickets = [many.submit(text) for text in requests(9, 9, 9)]  # longer than the reading
    running = list[Ticket]()
    while len(running) < 3:
        calls.clear()
        many.step()
        assert calls.count("prefill") == 1
        running = [ticket for ticket in tickets if ticket.status is Status.RUNNING]


def test_waiting_ends_with_a_request_or_with_the_timeout(decoder: MakeDecoder) -> None:
    many = decoder(1)
    assert not many.wait(0.0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(many.wait, 30.0)
        many.submit(requests(1)[0])
        assert waiting.result()
    list(many.run())
    assert not many.wait(0.0)
