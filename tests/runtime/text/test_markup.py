"""Markup is left out in any division of the text, what only looks like it stays, and pauses are found."""

import logging
import time
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from voxport.bundle.errors import UsageError
from voxport.runtime.text.markup import MAX_MARK_CHARACTERS, plain_lines
from voxport.runtime.text.preparation import prepare, read_speakable

LEFT_OUT = {
    "thoughts": ("<think>It is 5.\n\nOr 6.</think>\n\nIt is five.", "It is five."),
    "thoughts in capitals": ("<THINK>Hm.</Think> Yes.", "Yes."),
    "thoughts with attributes": ('<think type="a > b" open>Hm.</think > Yes.', "Yes."),
    "nested thoughts": ("<think>a <think>b</think> c</think> Yes.", "Yes."),
    "other thoughts": ("<thinking>a</thinking><reasoning>b</reasoning> Yes.", "Yes."),
    "thoughts in a word": ("Yes<think>hm</think> it is.", "Yes it is."),
    "thoughts without end": ("Yes, it is. <think>Or is it? No.", "Yes, it is."),
    "empty thoughts": ("<think/> Yes. <think></think> No.", "Yes. No."),
    "an end alone": ("</think>\n\nYes.", "Yes."),
    "code in thoughts": ("<think>\n```py\nx\n</think>\nYes.", "Yes."),
    "a tick in thoughts": ("<think>a `b</think> Yes `c` it is.", "Yes c it is."),
    "chat": ("Yes.<|im_end|>\n<|im_start|>assistant\nNo.<|endoftext|>", "Yes. No."),
    "chat in full width": ("Yes.<\uff5cend\u2581of\u2581sentence\uff5c>", "Yes."),
    "roles": ("<|start_header_id|>assistant<|end_header_id|>\n\nYes.<|eot_id|>", "Yes."),
    "turns": ("<start_of_turn>model\nYes.<end_of_turn>", "Yes."),
    "a word behind a mark": ("<|im_start|>systematic work.", "systematic work."),
    "instructions": ("<s>[INST] Yes. [/INST] No.</s>", "Yes. No."),
    "calls": ('<tool_call>{"a": 1}</tool_call>Yes.', "Yes."),
    "script": ("<script>if (1 < 2) x();</script><STYLE>p {}</STYLE> Yes.", "Yes."),
    "comment over sentences": ("Yes<!-- No. No.\n\nNo. --> it is.", "Yes it is."),
    "document": ("<!DOCTYPE html><html><body><p>Yes.</p></body></html>", "Yes."),
    "speech": ("<?xml version='1.0'?><speak><s>Yes.</s></speak>", "Yes."),
    "metadata": ("<speak><metadata><x>1</x></metadata><desc>a</desc>Yes.</speak>", "Yes."),
    "voice": ('<voice name="Dr. Who. Jr."><prosody rate="slow">Yes.</prosody></voice>', "Yes."),
    "speech of others": ('<mstts:express-as style="sad">Yes.</mstts:express-as>', "Yes."),
    "a tag over lines": ('<prosody\n  rate="slow"\n>Yes.</prosody>', "Yes."),
    "no blank": ("one<br>two<b>three</b>", "one. two three."),
    "blocks": (
        "<p>one</p><p>two</p><ul><li>three</li></ul><tr><td>a</td><td>b</td></tr>",
        "one. two. three. a b.",
    ),
    "thoughts in brackets": ("[THINK]Hm [1].[/THINK]Yes.", "Yes."),
    "escaped thoughts": ("&lt;think&gt;Hm.&lt;/think&gt;Yes.", "Yes."),
    "channels": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=f "
        "<|constrain|>json<|message|>{1}<|call|><|channel|>analysis<|message|>Ah<|channel|>final<|message|>"
        "User says yes.<|return|>",
        "User says yes.",
    ),
    "reading aid": ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp></ruby>字", "漢字。"),
    "laughter": ("[laughs] Yes. [Sighs deeply] No [softly chuckling] at all.", "Yes. No at all."),
    "joiner": ("now\u200d. No\u200cw.", "now. Now."),
}
KEPT = [
    "a < b and b > c.",
    "x <y and z>.",
    "a<b and c>d.",
    "List<int> and Map<String, List<int>>.",
    "I <3 you.",
    "Use git checkout <branch> now.",
    "1 <2, 3> 2.",
    "[think] and [thinking] of R&D, AT&T.",
    "See [1], [sic] and [emphasis added].",
    "a[laughs] and a[pause].",
    "The [laughing gas] is here.",
    "a <= b, c >= d, e == f.",
]


def spoken(text: str) -> str:
    return " ".join(prepare(text, "en", bool))


@pytest.mark.parametrize("case", LEFT_OUT)
def test_markup_is_left_out(case: str) -> None:
    text, expected = LEFT_OUT[case]
    assert spoken(text) == expected
    for pieces in (list(text), [text[:9], text[9:]]):
        assert " ".join(prepare(pieces, "en", bool)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is 5.\n\nOr `6`.</think>\n\nIt is five.", "It is five."),
        ("Hm ```<b>``` [1] <i>hm</i>.</Thinking > Yes.", "Yes."),
        ("Hm.[/THINK]Yes.", "Yes."),
        ("Yes. <think>Hm.</think> No.", "Yes. No."),
        ("Use `</think>` here.", "Use </think> here."),
        ("`<think>` ends. </think> Yes.", "Yes."),
    ],
)
def test_an_end_of_thoughts_without_start_hides_the_whole_text_before_it(text: str, expected: str) -> None:
    assert spoken(text) == expected
    assert read_speakable(text, "en", verbatim=False) == text
    with pytest.raises(UsageError, match="no word or number"):
        read_speakable(["Hm.", "</think>"], "en", verbatim=False)
    assert list(prepare(["Hm.</think> Yes."], "en", bool)) == ["Hm. Yes."]


@pytest.mark.parametrize("text", KEPT)
def test_what_only_looks_like_markup_stays(text: str) -> None:
    assert spoken(text) == text


def test_markup_in_code_is_text() -> None:
    assert spoken("Use `<think>` and ``<b>`` here. Yes.") == "Use <think> and <b> here. Yes."
    assert spoken("See\n```html\n<think>\n```\nhere.") == "See. here."


def test_markup_that_was_escaped_is_left_out_of_its_sentence() -> None:
    assert spoken("a &lt;b&gt;c&lt;/b&gt; &lt;break/&gt; d &lt; e.") == "a c d < e."


@pytest.mark.parametrize("text", [*(text for text, _ in LEFT_OUT.values()), "[pause:2s] a"])
def test_verbatim_text_keeps_its_markup(text: str) -> None:
    typed = "".join(prepare(text, "en", bool, verbatim=True))
    assert "".join(typed.split()) == "".join(text.split())


def test_an_element_without_end_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert spoken("Yes. <think>No.") == "Yes."
    assert "<think> without end: the text behind it was not spoken" in caplog.text


@pytest.mark.parametrize(
    ("mark", "milliseconds"),
    [
        ('<break time="2s"/>', 2000),
        ("<break time='500ms'/>", 500),
        ('<BREAK time="0.25s" strength="strong">', 250),
        ('<break strength="strong"/>', 1000),
        ("<break/>", 750),
        ('<break time="soon"/>', 750),
        ('<break time="60s"/>', 60_000),
        (f'<break time="{"9" * 20}s"/>', 3_600_000),
        ("[pause:2s]", 2000),
        ("[pause 1.5s]", 1500),
        ("[PAUSE: 1,5 seconds]", 1500),
        ("[pause=300ms]", 300),
        ("[pause 2]", 2000),
        ("[pause: 1 minute]", 60_000),
        ("[pause]", 750),
        ('<pause time="2s"/>', 2000),
        ("<pause duration=300ms>", 300),
        ("[2s pause]", 2000),
        ("[1.5-second silence]", 1500),
        ("[silence:2s]", 2000),
        ("[break]", 750),
        ("[long pause]", 750),
    ],
)
def test_pauses_divide_the_text(mark: str, milliseconds: int) -> None:
    for text in (f"One {mark} two.", f"One.{mark}two."):
        assert list(prepare(text, "en", bool)) == ["One.", f"\0{milliseconds}", "two."]
        assert list(prepare(text, "en", bool)) == list(prepare(list(text), "en", bool))


@pytest.mark.parametrize("mark", ['<break strength="none"/>', '<break time="0s"/>', "</break>"])
def test_a_pause_of_no_time_is_none(mark: str) -> None:
    assert spoken(f"One {mark} two.") == "One two."


MARKUP = [
    *("<think>", "</think>", "<THINK a='1'>", "<think/>", "<b>", "</b>", "<br/>", "<int>", "<!--", "-->"),
    *("<|im_end|>", "<|im_start|>", "assistant", "[pause", ":2s]", "[laughs]", "[1]", "[INST]", "</s>"),
    *("<|channel|>", "analysis", "final", "<|message|>", "[THINK]", "[/THINK]", "&lt;", "think", "&gt;", "&"),
    *("<", ">", "[", "]", "`", "``", "```", "-", "/", '"', "'", "=", "a", "Word.", "5", "你好。", "\u3000"),
    *(" ", "\n", "\n\n", "\n# ", "\n- ", '<a x="', "<break time='1s'/>", "\u00a0"),
]


@settings(max_examples=400, deadline=None)
@given(
    text=st.lists(st.sampled_from(MARKUP), max_size=25).map("".join),
    cuts=st.lists(st.integers(0, 120), max_size=9),
)
@example("<|im_start|>assistant", [3, 14, 16])
@example("[pause](x) <think", [7, 12])
def test_the_division_into_pieces_changes_nothing(text: str, cuts: list[int]) -> None:
    ends = sorted({min(cut, len(text)) for cut in cuts})
    pieces = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    assert "".join(plain_lines(pieces)) == "".join(plain_lines([text])) == "".join(plain_lines(text))
    for verbatim in (False, True):
        results = [parts(division, verbatim) for division in ([text], pieces, list(text))]
        assert results[0] == results[1] == results[2]


def parts(pieces: list[str], verbatim: bool) -> list[str]:
    found = list[str]()
    try:
        for part in prepare(pieces, "en", lambda part: len(part) <= 60, verbatim):
            found.append(part)
    except UsageError as error:
        found.append(str(error))
    return found


def test_what_precedes_thoughts_is_spoken_at_once() -> None:
    def pieces() -> Iterator[str]:
        yield "Let me think about this for a moment. <thi"
        yield "nk>W"
        raise AssertionError("read too early")

    assert next(prepare(pieces(), "en", bool)) == "Let me think about this for a moment."


def test_a_tag_that_never_ends_holds_little_text_back() -> None:
    text, known = '<a title="' + "word " * 2000, ""
    for count, piece in enumerate(plain_lines(text)):
        known += piece
        assert count - len(known) <= MAX_MARK_CHARACTERS + 25


@pytest.mark.parametrize(
    "text",
    [
        *("<", "<a ", '<a x="', "<think", "<think>", "[", "`", "`a", "<!--", "<|", "-", "<b x=1", "[pause "),
        *("&", "&lt;", "[THINK]", "<|channel|>analysis", "[1"),
    ],
)
@pytest.mark.parametrize("size", [1, 100_000])
def test_hostile_markup_takes_linear_time(text: str, size: int) -> None:
    text *= (100_000 if size > 1 else 20_000) // len(text)
    started = time.monotonic()
    list(plain_lines(text[start : start + size] for start in range(0, len(text), size)))
    assert time.monotonic() - started < 20
