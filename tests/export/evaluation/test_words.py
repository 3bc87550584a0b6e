"""Word error rates: what counts as a word, and how errors are counted."""

import pytest

from voxport.bundle.errors import UsageError
from voxport.export.evaluation.figures import (
    character_error_rate,
    normalised,
    standard_error,
    word_error_rate,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Seven green bottles -- standing!", "seven green bottles standing"),
        ("It\u2019s 7 o'clock.", "it's seven o'clock"),
        ("'Quoted', she said", "quoted she said"),
        ("the 18th of October", "the eighteenth of october"),
        ("$5 or 20%", "five dollars or twenty percent"),
        ("at 3:00", "at three o'clock"),
        ("Cafe\u0301", "caf\u00e9"),
        ("9" * 320, " ".join(["nine"] * 320)),
        ("At 3:45, not 3.45", "at three forty five not three point four five"),
        ("1,200 miles", "one thousand two hundred miles"),
        ("...", ""),
    ],
)
def test_words_are_compared_without_case_marks_and_digits(text: str, expected: str) -> None:
    assert normalised(text) == expected


def test_errors_of_all_sentences_are_counted_together() -> None:
    """One word of three is wrong, one of one is missing, and one is additional: 3 of 4."""
    assert word_error_rate(["one two three", "four"], ["one too three", ""]) == 2 / 4
    assert word_error_rate(["one two three", "four"], ["one too three four", ""]) == 3 / 4
    assert word_error_rate(["Four."], ["four"]) == 0
    assert character_error_rate(["今天天气很好。", "a b"], ["今天天汽 很好", "ab"]) == 1 / 8


def test_a_sentence_without_words_does_not_count() -> None:
    assert word_error_rate(["...", "four"], ["five", "four"]) == 0


def test_without_any_word_there_is_no_rate() -> None:
    with pytest.raises(UsageError, match="no sentence has a word"):
        word_error_rate(["..."], ["four"])


def test_the_error_of_a_difference_follows_from_sentences() -> None:
    """One sentence has one word more right, the other one less: 0 of 4 words, with 2 words of deviation."""
    texts, one, other = ["one two", "three four"], ["one too", "three four"], ["one two", "three for"]
    assert standard_error(texts, one, other) == pytest.approx(2 / 4)
    assert standard_error(texts, one, one) == 0
    twice = standard_error(texts * 2, one * 2, other * 2)
    assert twice == pytest.approx(2 / 4), "readings of one sentence are not independent sentences"


@pytest.mark.parametrize("texts", [["One two."], ["One two.", "one two", "..."]])
def test_one_sentence_has_no_error(texts: list[str]) -> None:
    assert standard_error(texts, ["one two"] * len(texts), ["one too"] * len(texts)) is None
