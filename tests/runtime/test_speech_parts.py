"""A text is spoken part by part: order, pauses, limits, and the same samples however the text comes in."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.runtime.prefix_caches import private_prefix_cache
from support.runtime.toy_speech import CONSTANTS, FRAME, ROWS, Prompts, ToyEngine, toy_slots

from voxport.bundle.errors import UsageError
from voxport.runtime.batching import Status
from voxport.runtime.families.voxtral_tts.task import VoxtralSlots
from voxport.runtime.speech_request import SpeechOptions
from voxport.runtime.text_to_speech import TextToSpeech

FIRST = "This is the first sentence, which is long enough to be spoken alone."
SECOND = "And this is the second sentence; it is long enough as well, I think."
TEXT = f"{FIRST} {SECOND} End."


class ToyTask(TextToSpeech):
    """Speaks with the toy engine; the cache has room for 16 frames of each part."""

    sample_rate, samples_per_frame, max_slots = CONSTANTS.sample_rate, FRAME, 3

    def __init__(self) -> None:
        self.longest = 1000
        self.prompts = Prompts(ids=3, is_constant=True)
        self._prefixes = private_prefix_cache()

    def estimated_frames(self, text: str) -> float:
        return 0.5 * len(text)

    def voices(self) -> dict[str, int]:
        return {}

    def fits_prompt(self, voice: str | None, instruct: str | None = None) -> Callable[[str], bool]:
        return lambda text: len(text) <= self.longest

    def slot_decoder(self, slots: int) -> VoxtralSlots:
        return toy_slots(slots, ToyEngine(), self.prompts, self._prefixes)


@pytest.fixture
def task() -> ToyTask:
    return ToyTask()


def spoken(task: ToyTask, text: str | Iterator[str], **options: Any) -> tuple[np.ndarray, Status]:
    pieces, found = task.speak(text, **options), []
    while True:
        try:
            found.append(next(pieces))
        except StopIteration as end:
            return np.concatenate(found), end.value


def test_parts_are_spoken_in_order_with_pauses(task: ToyTask) -> None:
    alone = [spoken(task, part, seed=5)[0] for part in (FIRST, SECOND, "End.")]
    silence = np.zeros(300, np.float32)  # 0.3 s at 1000 samples per second
    whole, status = spoken(task, TEXT, seed=5, pause=0.3)
    np.testing.assert_array_equal(whole, np.concatenate([alone[0], silence, alone[1], silence, alone[2]]))
    assert task.prompts.texts[-3:] == [FIRST, SECOND, "End."]
    assert status == Status.CACHE  # the toy model never ends, and its cache has 24 rows
    assert len(alone[0]) == (ROWS - 8) * FRAME


def test_pauses_of_the_text_are_silence_of_their_length(
    task: ToyTask, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (spoken(task, part)[0] for part in ("One.", "Two."))
    silence: Callable[[float], np.ndarray] = lambda seconds: np.zeros(
        round(seconds * CONSTANTS.sample_rate), np.float32
    )
    text = '[pause:50ms] One. <break time="1s"/> <break time="500ms"/> Two. [pause:2s]'
    whole = spoken(task, text, pause=0.3)[0]
    np.testing.assert_array_equal(whole, np.concatenate([silence(0.05), one, silence(1.5), two, silence(2)]))
    assert not caplog.text
    whole = spoken(task, "One. [pause:8s] [pause:8s] Two.")[0]
    np.testing.assert_array_equal(whole, np.concatenate([one, silence(10), two]))
    assert "a pause of 16 s: at most 10 s are spoken" in caplog.text
    whole = spoken(task, "One. [pause:1s] Two.", max_frames=1)[0]
    assert len(whole) == FRAME
    found = [list[np.ndarray]() for _ in range(2)]
    for index, samples in task.speak_all(["[pause:1s] One.", "Two. [pause:3s]"]):
        found[index].append(samples)
    np.testing.assert_array_equal(np.concatenate(found[0]), np.concatenate([silence(1), one]))
    np.testing.assert_array_equal(np.concatenate(found[1]), np.concatenate([two, silence(3)]))


def test_verbatim_text_has_no_pauses(task: ToyTask) -> None:
    spoken(task, "One. [pause:2s] Two.", verbatim=True)
    assert task.prompts.texts == ["One. [pause:2s] Two."]


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_division_of_the_text_changes_no_sample(task: ToyTask, size: int) -> None:
    pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    np.testing.assert_array_equal(spoken(task, iter(pieces))[0], spoken(task, TEXT)[0])


def test_the_first_samples_come_before_the_text_is_complete(task: ToyTask) -> None:
    def pieces() -> Iterator[str]:
        yield f"{FIRST} And t"
        raise AssertionError("read too early")

    assert len(next(task.speak(pieces())))


@pytest.mark.parametrize("verbatim", [False, True])
@pytest.mark.parametrize("text", ["Hi.\n\n \nYes. No.\r\nEnd.", "Hi.\nYes. No.\n\nEnd.\n"])
def test_each_line_is_a_part_that_comes_when_it_ends(task: ToyTask, text: str, verbatim: bool) -> None:
    lines = "Hi.", "Yes. No.", "End."
    alone = [spoken(task, line)[0] for line in lines]
    silence = np.zeros(300, np.float32)
    expected = np.concatenate([alone[0], silence, alone[1], silence, alone[2]])
    for given in (text, iter(text)):
        whole = spoken(task, given, lines=True, pause=0.3, verbatim=verbatim)[0]
        np.testing.assert_array_equal(whole, expected)

    def pieces() -> Iterator[str]:
        yield "Hi.\n"
        raise AssertionError("read too early")

    assert len(next(task.speak(pieces(), lines=True, verbatim=verbatim)))


def test_the_limit_counts_the_frames_of_all_parts(task: ToyTask) -> None:
    for limit in (3, 16, 20, 40):
        samples, status = spoken(task, TEXT, max_frames=limit, pause=0)
        assert len(samples) == limit * FRAME and status in (Status.LIMIT, Status.CACHE)
    assert spoken(task, TEXT, max_frames=3)[1] == Status.LIMIT


def test_a_part_that_does_not_fit_is_split(task: ToyTask) -> None:
    task.longest = 40
    spoken(task, FIRST, verbatim=True)
    assert task.prompts.texts == ["This is the first sentence,", "which is long enough to be spoken alone."]


def test_several_texts_together_keep_the_order_of_their_parts(task: ToyTask) -> None:
    texts = [TEXT, "Short.", SECOND, "Another short one."]
    found: dict[int, list[np.ndarray]] = {index: [] for index in range(len(texts))}
    pieces = task.speak_all(texts, slots=3, seed=2, max_frames=2)
    while True:
        try:
            index, samples = next(pieces)
        except StopIteration as end:
            assert end.value == [spoken(task, text, seed=2, max_frames=2)[1] for text in texts]
            break
        found[index].append(samples)
    for index, text in enumerate(texts):
        np.testing.assert_array_equal(
            np.concatenate(found[index]), spoken(task, text, seed=2, max_frames=2)[0]
        )


def test_several_texts_have_options_of_their_own(task: ToyTask) -> None:
    each: list[SpeechOptions] = [{"seed": 1, "max_frames": 3}, {"language": "auto", "pause": 0.5}, {}]
    texts, found = ["Short.", TEXT, SECOND], [list[np.ndarray]() for _ in range(3)]
    for index, samples in task.speak_all(texts, options_of_each=each, seed=2, max_frames=20):
        found[index].append(samples)
    for text, pieces, options in zip(texts, found, each, strict=True):
        alone = spoken(task, text, **({"seed": 2, "max_frames": 20} | options))[0]
        np.testing.assert_array_equal(np.concatenate(pieces), alone)


def test_the_usual_length_follows_from_the_text(task: ToyTask) -> None:
    assert task.estimated_seconds("a" * 100) == 50 * FRAME / CONSTANTS.sample_rate


@pytest.mark.parametrize(
    "option",
    [
        {"pause": -1},
        {"pause": 11},
        {"pause": float("nan")},
        {"pause": "long"},
        {"max_frames": 0},
        {"max_frames": 2.5},
        {"seed": 1.5},
        {"seed": True},
        {"voice": 5},
        {"budget": "3"},
        {"budget": float("inf")},
    ],
)
def test_wrong_options_are_refused(task: ToyTask, option: dict[str, Any]) -> None:
    (name,) = option
    with pytest.raises(UsageError, match=name) as caught:
        next(task.speak("Fine.", **option))
    assert caught.value.field == name


def test_an_unknown_option_is_named_with_a_close_one(task: ToyTask) -> None:
    wrong: dict[str, Any] = {"voise": "a"}
    with pytest.raises(TypeError, match="no option 'voise'; did you mean voice"):
        next(task.speak("Fine.", **wrong))


def test_a_wrong_text_is_refused_before_the_first_samples(task: ToyTask) -> None:
    wrong: tuple[tuple[Any, str], ...] = (
        (None, "expected a str"),
        ("a\0b", "NUL"),
        ("😀", "nothing to speak"),
        ("[pause:2s]", "nothing to speak"),
    )
    for text, says in wrong:
        with pytest.raises(UsageError, match=says):
            next(task.speak(text))
        with pytest.raises(UsageError, match=f"text 1: .*{says}"):
            next(task.speak_all(["Fine.", text]))
