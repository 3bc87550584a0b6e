"""Texts without anything to speak are refused. Clean-up applies its rules in order, only on request."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bundle.errors import UsageError
from runtime.text.cleanup import FINAL_MARKS, check_text, clean_text, number_words


@given(text=st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1))
@example("hello [AUDIO] </s>")
@example(" \tcafé\n\n12,5 👩‍👩‍👧 ")
@example("- **not** `cleaned` &amp; $5")
def test_a_valid_text_is_returned_unchanged(text):
    assert check_text(text) == text


@pytest.mark.parametrize("text", ["", " ", "\n\t \u3000", "\x07\x1b", "\u200b\ufeff \u200d", "\x85"])
def test_a_text_of_nothing_but_blanks_and_control_characters_is_refused(text):
    with pytest.raises(UsageError, match="nothing to speak"):
        check_text(text)


def test_nul_is_refused_with_its_position():
    with pytest.raises(UsageError, match="NUL character at index 2"):
        check_text("ab\0c")


@pytest.mark.parametrize("surrogate", ["\ud800", "\udcff"])
def test_a_lone_surrogate_is_refused_with_its_position(surrogate):
    with pytest.raises(UsageError, match=f"U\\+{ord(surrogate):04X} at index 1") as caught:
        check_text(f"a{surrogate}")
    str(caught.value).encode()  # the message itself can be printed


CLEANED = {
    "fenced code": ("See\n```py\nx = 1\n```\nthere.", "See Code example omitted. there."),
    "fence of tildes": ("See\n~~~\nx\n~~~\nthere.", "See Code example omitted. there."),
    "an empty fence": ("See\n```\n```\nthere.", "See Code example omitted. there."),
    "an open fence stays": ("See\n```py\nx.", "See ```py x."),
    "html entities": ("salt &amp; pepper&#33;", "salt & pepper!"),
    "escaped tags are tags": ("a &lt;b&gt;c&lt;/b&gt;.", "a c ."),
    "line break tag": ("one<br>two<BR />three.", "one two three."),
    "image with a text": ("See ![a cat](cat.png).", "See a cat."),
    "image without a text": ("See ![](cat.png).", "See image."),
    "link": ("Read [the paper](https://x.org/a_(b)).", "Read the paper."),
    "image in a link": ("[![a cat](c.png)](https://x.org) sits.", "a cat sits."),
    "autolink": ("Go to <https://x.org/a> or <me@x.org>.", "Go to link or link."),
    "address": ("Go to https://x.org/a?b=c, or www.x.org.", "Go to link, or link."),
    "inline code": ("Call `run` or ``go``.", "Call run or go."),
    "heading": ("## Title\nText.", "Title Text."),
    "list": ("- one\n* two\n3. three.", "one two three."),
    "quote": ("> > said\n> so.", "said so."),
    "a hash in a word stays": ("C# is #1.", "C# is #1."),
    "html tags": ('a <b class="x">bold</b> word<!-- no -->.', "a bold word ."),
    "a comparison is no tag": ("x < 5 and y > 3.", "x < 5 and y > 3."),
    "invisible characters": ("in\u00advi\u200bsi\u2060ble\ufeff \u202eword.", "invisible word."),
    "joiners stay": ("👩\u200d👧 \u0645\u06cc\u200c\u062e.", "👩\u200d👧 \u0645\u06cc\u200c\u062e."),
    "line breaks": ("a\r\nb\rc\u2028d\u2029e.", "a b c d e."),
    "dollars": ("It is $5, or $1.", "It is five dollars, or one dollar."),
    "dollars and cents": ("It is $3.50.", "It is three dollars and fifty cents."),
    "one cent": ("It is $1.01.", "It is one dollar and one cent."),
    "cents alone": ("It is $0.99.", "It is ninety-nine cents."),
    "later dollars are short": (
        "$3.50, $4.25 and $4.05.",
        "three dollars and fifty cents, four twenty-five and four oh five.",
    ),
    "later hundreds are not": (
        "$1 and $120.50.",
        "one dollar and one hundred twenty dollars and fifty cents.",
    ),
    "euros, pounds, yen": (
        "€2.20 £1.01 ¥500.",
        "two euros and twenty cents one pound and one penny five hundred yen.",
    ),
    "millions of dollars": ("$1.5 million or $2M.", "one point five million dollars or two million dollars."),
    "grouped dollars": ("$12,345.", "twelve thousand three hundred forty-five dollars."),
    "negative dollars": ("-$5.", "minus five dollars."),
    "malformed amounts stay": ("$12,34 and $1.2.3.", "$12,34 and $1.2.3."),
    "amounts too large stay": ("$1,000,000,000,000,000,000.", "$1,000,000,000,000,000,000."),
    "digits past what can be read": (f"${'9' * 5000}.", f"${'9' * 5000}."),
    "big number": (
        "1,234,567 people.",
        "one million two hundred thirty-four thousand five hundred sixty-seven people.",
    ),
    "small number stays": ("999,999 people.", "999,999 people."),
    "ungrouped number stays": ("1234567 people.", "1234567 people."),
    "number too large stays": ("1,000,000,000,000,000,000.", "1,000,000,000,000,000,000."),
    "number with decimals stays": ("1,000,000.5 it is.", "1,000,000.5 it is."),
    "aside": ("It (the cat) sat.", "It — the cat — sat."),
    "symbols in an aside": ("It (50% & more) sat.", "It — 50 percent and more — sat."),
    "symbols outside stay": ("50% & more.", "50% & more."),
    "number in parentheses stays": ("It (42) sat (1,000).", "It (42) sat (1,000)."),
    "empty parentheses": ("run() now.", "run now."),
    "nested asides": ("a (b (c) d) e.", "a — b — c — d — e."),
    "unicode hyphens": ("well\u2010kept non\u2011stop.", "well-kept non-stop."),
    "dots": ("wait..... what.", "wait... what."),
    "repeated marks": ("no!!! what???", "no! what?"),
    "dashes": ("a -- b---c.", "a — b—c."),
    "lone dash": ("a - b \u2013 c.", "a — b — c."),
    "minus stays": ("5 - 3 or a - €.", "5 - 3 or a - €."),
    "hyphen stays": ("well-kept.", "well-kept."),
    "blanks": ("  a \t b\u00a0 c.  ", "a b c."),
    "a final mark is added": ("hello", "hello."),
}


@pytest.mark.parametrize("case", CLEANED)
def test_each_rule_of_the_clean_up(case):
    text, expected = CLEANED[case]
    assert clean_text(text) == expected


@pytest.mark.parametrize("mark", FINAL_MARKS)
def test_a_final_mark_is_not_doubled(mark):
    assert clean_text(f"hello{mark}") == f"hello{mark}"


@pytest.mark.parametrize("text", ["", "  \n", "<b></b>", "\u200b", "()", "# \n- "])
def test_a_text_that_clean_up_leaves_empty_is_refused(text):
    with pytest.raises(UsageError, match="nothing to speak"):
        clean_text(text)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from("a1,.$€-()[]!?<>`#&; \n\u200b\u2028/5"), max_size=60) | st.text(max_size=40)
)
def test_clean_text_is_one_line_with_a_final_mark_or_refused(text):
    try:
        cleaned = clean_text(text)
    except UsageError:
        return
    assert cleaned[-1] in FINAL_MARKS
    assert cleaned == " ".join(cleaned.split())


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (20, "twenty"),
        (99, "ninety-nine"),
        (100, "one hundred"),
        (1_005, "one thousand five"),
        (1_000_000, "one million"),
        (
            10**18 - 1,
            "nine hundred ninety-nine quadrillion nine hundred ninety-nine trillion "
            "nine hundred ninety-nine billion nine hundred ninety-nine million "
            "nine hundred ninety-nine thousand nine hundred ninety-nine",
        ),
    ],
)
def test_numbers_are_written_in_words(number, words):
    assert number_words(number) == words
