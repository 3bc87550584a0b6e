"""Splitting of text that arrives in pieces: no letter is lost, parts fit, the division does not matter."""

import io
import logging
import unicodedata
from collections.abc import Iterator
from typing import cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.runtime.speech_tasks import ToyVoxtral
from support.stand_ins import noting

from voxport.bundle.errors import UsageError
from voxport.runtime.text.markup import plain_lines
from voxport.runtime.text.preparation import (
    MIN_PART_CHARACTERS,
    await_speakable,
    prepare,
    read_speakable,
    read_text,
    sentences,
    spoken_parts,
)

LANGUAGES = ("ar", "de", "en", "es", "fr", "hi", "it", "nl", "pt")


def letters(text: str) -> list[str]:
    return [character for character in text if unicodedata.category(character)[0] in "LNM"]


def divided(text: str, cuts: list[int]) -> list[str]:
    ends = sorted({min(cut, len(text)) for cut in cuts})
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


WORDS = st.sampled_from(
    [
        "Hello",
        "Mr.",
        "3.14",
        "z.B.",
        "कैसे",
        "मैं।",
        "كيف؟",
        "été,",
        "e\u0301",
        "no!",
        "a" * 70,
        "x;",
        "\n",
        "\n\n",
        "—",
        "«",
    ]
)
CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
TEXTS = st.lists(WORDS, max_size=30).map(" ".join) | st.text(CHARACTERS, max_size=120)


@settings(max_examples=300, deadline=None)
@given(
    text=TEXTS,
    cuts=st.lists(st.integers(0, 200), max_size=8),
    language=st.sampled_from(LANGUAGES),
    most=st.integers(1, 90),
)
@example("a" * 300 + ". b", [], "en", 100)
@example("One.\n\nTwo", [4, 5], "en", 90)
def test_splitting_loses_no_letter_and_the_division_changes_nothing(
    text: str, cuts: list[int], language: str, most: int
) -> None:
    fits = lambda part: len(part) <= most
    found = list(spoken_parts(sentences([text], language), fits))
    assert letters("".join(found)) == letters(text)
    assert found == list(spoken_parts(sentences(divided(text, cuts), language), fits))
    assert all(part == part.strip() and part for part in found)
    assert all(len(part) <= most or len(part) <= 3 for part in found)  # 3: a letter with its accents


CASES = {
    "en": (
        "Dr. Smith paid 3.50 at 5 p.m. today. He left.",
        ["Dr. Smith paid 3.50 at 5 p.m. today.", "He left."],
    ),
    "de": ("Das ist z.B. am 3. Mai so. Oder nicht?", ["Das ist z.B. am 3. Mai so.", "Oder nicht?"]),
    "fr": ("Mme Dupont est là. Et vous ? Oui !", ["Mme Dupont est là.", "Et vous ?", "Oui !"]),
    "es": ("¿Qué tal? El Sr. Ruiz llegó. ¡Bien!", ["¿Qué tal?", "El Sr. Ruiz llegó.", "¡Bien!"]),
    "it": ("Il dott. Rossi parla. Va bene?", ["Il dott. Rossi parla.", "Va bene?"]),
    "nl": ("Dat is dhr. Jansen. Hij komt.", ["Dat is dhr. Jansen.", "Hij komt."]),
    "pt": ("O Sr. Silva chegou. Tudo bem?", ["O Sr. Silva chegou.", "Tudo bem?"]),
    "hi": ("नमस्ते। आप कैसे हैं? ठीक है।", ["नमस्ते।", "आप कैसे हैं?", "ठीक है।"]),
    "ar": ("مرحبا. كيف حالك؟ بخير.", ["مرحبا.", "كيف حالك؟", "بخير."]),
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_sentences_end_where_the_language_ends_them(language: str) -> None:
    text, expected = CASES[language]
    assert list(sentences(text, language)) == expected


def test_short_sentences_are_spoken_together() -> None:
    text = "Yes. No. " + "A sentence that is long enough to be spoken on its own by anyone. " + "Well. So."
    found = list(spoken_parts(sentences([text], "en"), lambda part: len(part) <= 300))
    assert [len(part) >= MIN_PART_CHARACTERS for part in found] == [True, False]
    assert found[1] == "Well. So."


@pytest.mark.parametrize(
    ("vocabulary", "expected"),
    [
        (131072, ["We have 3 dogs. It is 25 %, the 2nd of 1,234."]),
        (
            2048,
            [
                "We have three dogs.",
                "It is twenty five percent, the second of one thousand two hundred and thirty four.",
            ],
        ),
    ],
)
def test_a_model_with_a_small_vocabulary_gets_single_sentences_in_words(
    vocabulary: int, expected: list[str]
) -> None:
    task = ToyVoxtral()
    task._constants = task._constants.model_copy(update={"vocab_size": vocabulary})
    text = "We have 3 dogs. It is 25 %, the 2nd of 1,234."
    assert list(prepare(text, "en", lambda part: True, rules=task.text_rules)) == expected
    as_typed = "".join(prepare(text, "en", lambda part: True, verbatim=True, rules=task.text_rules))
    assert "25 %" in as_typed


def test_a_long_sentence_is_split_at_clauses_then_spaces_then_characters() -> None:
    fits = lambda part: len(part) <= 20
    assert list(spoken_parts(["One two three, four five; six seven eight"], fits)) == [
        "One two three,",
        "four five;",
        "six seven eight",
    ]
    assert list(spoken_parts(["one two three four five six"], fits)) == ["one two three four", "five six"]
    assert list(spoken_parts(["x" * 45], fits)) == ["x" * 20, "x" * 20, "x" * 5]
    family = "👩\u200d👩\u200d👧"
    assert list(spoken_parts([family * 5], fits)) == [family * 4, family]


def test_a_part_is_there_as_soon_as_the_next_sentence_begins() -> None:
    arrived = []

    def pieces() -> Iterator[str]:
        for piece in (
            "This is a sentence that is long enough to be spoken alone, yes.",
            " ",
            "N",
            "ext",
            " one.",
        ):
            arrived.append(piece)
            yield piece

    found = prepare(pieces(), "en", lambda part: True)
    assert (
        next(found).endswith("yes.") and len(arrived) == 5
    )  # the head of a line of 24 characters, and a word
    assert list(found) == ["Next one."]


def test_a_word_without_end_becomes_sentences_while_it_arrives() -> None:
    pieces = iter(["a" * 700] * 100)
    assert set(next(sentences(pieces, "en"))) == {"a"} and len(list(pieces)) > 80


@pytest.mark.parametrize("size", [1, 7, 1999, 2000, 2001, 9000])
def test_the_division_of_a_long_word_changes_nothing(size: int) -> None:
    text = f"One. {'a' * 4000} {'b' * 4001}\n\n{'c' * 2000} end"
    divided = [text[start : start + size] for start in range(0, len(text), size)]
    assert list(sentences(divided, "en")) == list(sentences([text], "en"))


def test_a_part_is_there_as_soon_as_its_paragraph_ends() -> None:
    """What a language model prints may pause behind a paragraph."""
    arrived = []

    def pieces() -> Iterator[str]:
        for piece in ("I can certainly do ", "that.\n", "\n", "\n ", "Well.\n\n", "Then a last line."):
            arrived.append(piece)
            yield piece

    found = prepare(pieces(), "en", lambda part: True)
    assert next(found) == "I can certainly do that." and len(arrived) == 3
    assert list(found) == ["Well. Then a last line."]  # a short paragraph is spoken with the next one


BLOCKS = {
    "heading": ("# Title\nText.", ["Title", "Text."]),
    "list": ("Buy:\n- one\n* two\n3. three", ["Buy:", "one", "two", "3.", "three"]),
    "nested list": ("- a\n  - b\n    1) c", ["a", "b", "1) c"]),
    "quote": ("> > said\n> so.", ["said", "so."]),
    "fence": ("See\n```py\nx = 1. y\n```\nthere.", ["See", "there."]),
    "fence of tildes": ("See\n~~~~\n```\n~~~\n~~~~\nthere.", ["See", "there."]),
    "fence at the start": ("```\nx\n```\nthere.", ["there."]),
    "table": ("| a | b |\n|---|---|\n| c | d |", ["a | b |", "---|---|", "c | d |"]),
    "wrapped lines": ("one\ntwo.\nThree", ["one\ntwo.", "Three"]),
    "windows lines": ("one\r\ntwo.\r\n\r\nThree", ["one\ntwo.", "Three"]),
    "a dash in a line": ("one\nand - two", ["one\nand - two"]),
    "a number at the start": ("1984 was it.", ["1984 was it."]),
}


@pytest.mark.parametrize("case", BLOCKS)
def test_lines_of_markdown(case: str) -> None:
    text, expected = BLOCKS[case]
    for pieces in ([text], text):
        assert list(filter(None, sentences(plain_lines(pieces), "en"))) == expected


def test_a_fence_without_end_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert list(sentences(plain_lines("See\n```py\nx = 1"), "en")) == ["See", ""]
    assert "code block without end" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        *("😀", "", " \n", "<b></b>", "# \n- ", "```\ncode\n```", "?!", "[pause:2s]", '<break time="1s"/>'),
        *("<think>Hm.</think>", "<think>Hm.", "<|im_end|>"),
    ],
)
def test_a_text_with_nothing_to_speak_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="nothing to speak"):
        list(prepare(text, "en", lambda part: True))
    with pytest.raises(UsageError, match="nothing to speak"):
        read_speakable([text], language="en", verbatim=False)


def test_verbatim_text_keeps_its_marks_and_is_still_split() -> None:
    text = "- **One** sentence 'here' that is long enough to be spoken alone, I think. 😀 Two!!"
    found = list(prepare(text, "en", lambda part: True, verbatim=True))
    assert found == ["- **One** sentence 'here' that is long enough to be spoken alone, I think.", "😀 Two!!"]
    with pytest.raises(UsageError, match="nothing to speak"):
        list(prepare(" \n\x07", "en", lambda part: True, verbatim=True))


def test_an_arriving_text_is_read_up_to_its_first_letter() -> None:
    read = list[str]()
    pieces = map(noting(str, read.append), ("😀", "a", "b"))
    assert list(await_speakable(pieces, language="en", verbatim=False)) == ["😀", "a", "b"]
    read.clear()
    pieces = map(noting(str, read.append), ("😀", "a", "b"))
    await_speakable(pieces, language="en", verbatim=False)
    assert read == ["😀", "a"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("é".encode()[:1], "x: it ends in the middle of a character at byte 0"),
        (b"abc" + "\U0001f600".encode()[:3], "at byte 3"),
        (b"ab\xff", "invalid start byte at byte 2"),
    ],
)
def test_bytes_that_are_not_utf8_are_refused(content: bytes, says: str) -> None:
    for source in (io.BytesIO(content), OneByOne(content)):
        with pytest.raises(UsageError, match=says):
            list(read_text(source, "x"))


def test_a_text_without_end_is_refused() -> None:
    class Endless(io.RawIOBase):
        def read1(self, size: int = -1) -> bytes:
            return b"a " * 32768

    with pytest.raises(UsageError, match="stdin: longer than 16777216 bytes"):
        for _ in read_text(cast(io.BufferedIOBase, Endless()), "stdin"):
            pass


def test_a_text_that_arrives_byte_by_byte_is_decoded() -> None:
    assert "".join(read_text(OneByOne("\ufeffé😀".encode()), "x")) == "é😀"


class OneByOne(io.BytesIO):
    def read1(self, size: int | None = -1) -> bytes:
        return super().read1(1)
