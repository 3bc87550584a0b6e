"""Why speech ends, on planted logits: the model, the budget of its text, the cache, or a limit."""

from collections.abc import Callable
from typing import Any

import pytest
from support.runtime.toy_speech import FRAME, Prompts, ToyEngine, ToyStream, toy_decoder

from voxport.bundle.constants.voxtral_tts import END_AUDIO
from voxport.bundle.errors import UsageError
from voxport.runtime.batching import BatchedDecoder, Status, Ticket
from voxport.runtime.engines.base import Arrays
from voxport.runtime.families.qwen3_tts.prompt import estimated_frames as estimated_frames_of_qwen
from voxport.runtime.families.voxtral_tts.task import FRAMES_PER_CHARACTER, estimated_frames
from voxport.runtime.speech_request import SPARE_FRAMES, SpeechRequest

ROOM = 16  # the frame of the prompt of 9 rows, and 15 more in the toy cache of 24 rows


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Callable[..., BatchedDecoder[SpeechRequest]]:
    """Makes decoders whose model ends after the given number of frames, counted from a prompt."""
    compute = ToyStream._prefill

    def make(ends_after: int, slots: int = 1) -> BatchedDecoder[SpeechRequest]:
        def planted(stream: ToyStream, slot: int, inputs: Arrays) -> Arrays:
            outputs = compute(stream, slot, inputs)
            frame = int(inputs["position"]) + len(inputs["embeddings"]) - 9
            logits = outputs["semantic_logits"].copy()
            logits[END_AUDIO] = 100 if frame >= ends_after else -100
            return outputs | {"semantic_logits": logits}

        monkeypatch.setattr(ToyStream, "_prefill", planted)
        monkeypatch.setattr(ToyStream, "_decode_step", planted)
        return toy_decoder(slots, ToyEngine(), Prompts(ids=3))

    return make


def frames(decoder: BatchedDecoder[SpeechRequest], *requests: SpeechRequest) -> list[tuple[int, Status]]:
    tickets = [decoder.submit(request) for request in requests]
    counts: dict[Ticket, int] = dict.fromkeys(tickets, 0)
    for ticket, samples in decoder.run():
        counts[ticket] += len(samples) // FRAME
    return [(counts[ticket], ticket.status) for ticket in tickets]


def test_the_model_cannot_end_the_speech_before_its_first_frame(
    decoder: Callable[..., BatchedDecoder[SpeechRequest]],
) -> None:
    assert frames(decoder(0), SpeechRequest("abc")) == [(1, Status.END)]


def test_with_an_option_it_can(decoder: Callable[..., BatchedDecoder[SpeechRequest]]) -> None:
    assert frames(decoder(0), SpeechRequest("abc", may_be_empty=True)) == [(0, Status.END)]


def test_each_slot_counts_its_own_frames(decoder: Callable[..., BatchedDecoder[SpeechRequest]]) -> None:
    """The second request has its first frame while the first one may already end."""
    request = SpeechRequest("abc")
    assert frames(decoder(0, slots=2), request, request, request) == [(1, Status.END)] * 3


def test_a_later_frame_may_end_it(decoder: Callable[..., BatchedDecoder[SpeechRequest]]) -> None:
    assert frames(decoder(4), SpeechRequest("abc")) == [(4, Status.END)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (ROOM, Status.CACHE)),  # the spare frames of the budget are more
        ({"max_frames": 2}, (2, Status.LIMIT)),
        ({"max_frames": ROOM}, (ROOM, Status.CACHE)),
    ],
)
def test_speech_without_an_end_is_stopped(
    decoder: Callable[..., BatchedDecoder[SpeechRequest]],
    options: dict[str, Any],
    expected: tuple[int, Status],
) -> None:
    assert frames(decoder(1000), SpeechRequest("abc", **options)) == [expected]


@pytest.mark.parametrize(("budget", "expected"), [(1.0, (4, Status.BUDGET)), (None, (ROOM, Status.CACHE))])
def test_speech_much_longer_than_its_text_is_stopped(
    decoder: Callable[..., BatchedDecoder[SpeechRequest]],
    monkeypatch: pytest.MonkeyPatch,
    budget: float | None,
    expected: tuple[int, Status],
) -> None:
    """Five characters take 3.4 frames."""
    monkeypatch.setattr("voxport.runtime.speech_request.SPARE_FRAMES", 0)
    assert frames(decoder(1000), SpeechRequest("abcde", budget=budget)) == [expected]


def test_the_default_budget_is_three_times_the_usual_length_and_forty_frames() -> None:
    """0.68 frames per character are published: 100 characters may take 204 + 40 frames, 19.5 s."""
    assert SpeechRequest("a" * 100).budget_frames(estimated_frames("a" * 100)) == 244
    assert (FRAMES_PER_CHARACTER, SPARE_FRAMES) == (0.68, 40)


SHORT = {"1次.": 2.6, "2次.": 2.6, "1.": 1.7, "3.": 1.7, "A.": 1.7, "No.": 2.0, "Ja.": 2.0, "次。": 2.7}
EXPLAINED = {  # texts that take long to say for their length, and about how long, in seconds
    "1234567.": 4.5,
    "WWW.": 1.8,
    "HTTPS.": 1.5,
    "2026.": 1.8,
    "$5 m.": 1.5,
    "77.": 1.0,
    "Hello, how are you today?": 3.2,
}


@pytest.mark.parametrize("text", [*SHORT, *EXPLAINED])
def test_a_very_short_text_has_a_short_limit_which_no_digit_or_capital_letter_meets(text: str) -> None:
    for estimate in (estimated_frames, estimated_frames_of_qwen):
        seconds = 0.08 * SpeechRequest(text).budget_frames(estimate(text))
        if text in SHORT:
            assert 1.2 < seconds < SHORT[text]
        else:
            assert seconds > EXPLAINED[text]


@pytest.mark.parametrize("budget", [0, -1.0, float("nan"), float("inf")])
def test_a_budget_that_is_no_positive_number_is_refused(budget: float) -> None:
    with pytest.raises(UsageError, match="budget"):
        SpeechRequest("abc", budget=budget)
