"""Checks of text to be spoken, and an optional clean-up of markup, numbers and punctuation."""

import html
import re
import unicodedata
from collections.abc import Callable

from bundle.errors import UsageError

ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen"),
    *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
SCALES = ("", " thousand", " million", " billion", " trillion", " quadrillion")
NUMBER_LIMIT = 1000 ** len(SCALES)

# symbol: unit and its plural, hundredth and its plural (empty: decimals are spelled digit by digit)
CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yen", "yen", "", ""),
}
MAGNITUDES = {"k": "thousand", "m": "million", "bn": "billion", "b": "billion"}
SYMBOLS = {
    "&": "and",
    "%": "percent",
    "+": "plus",
    "=": "equals",
    "@": "at",
    "#": "number",
    "<": "less than",
    ">": "greater than",
}

SIGN = r"(?P<sign>(?<![\w)])[-\u2212])?"
AMOUNT = re.compile(
    SIGN + r"(?P<symbol>[$€£¥])[ ]?(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)"
    r"(?:\.(?P<decimals>[0-9]+))?(?![0-9]|[.,][0-9])"
    r"(?:(?P<magnitude>[ ]?(?:thousand|million|billion|trillion)|[kKmMbB]|bn)\b)?"
)
BIG_NUMBER = re.compile(SIGN + r"(?<![\w.,$€£¥])(?P<whole>[0-9]{1,3}(?:,[0-9]{3}){2,5})(?!\w|[.,][0-9])")
PARENTHESES = re.compile(r"\(([^()]*)\)")
PURE_NUMBER = re.compile(r"\s*[-+\u2212]?[0-9][0-9.,]*\s*")
MAX_NESTING = 8  # levels of parentheses that are replaced; bounds the time on text of parentheses only

FINAL_MARKS = ".!?…؟。\uff01\uff1f"

Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]

MARKUP: tuple[Rule, ...] = (
    (re.compile(r"<br\s*/?>", re.IGNORECASE), " "),
    (re.compile(r"!\[([^\[\]]*)\]\((?:[^()\n]|\([^()\n]*\))*\)"), lambda found: found[1].strip() or "image"),
    (re.compile(r"\[([^\[\]]+)\]\((?:[^()\n]|\([^()\n]*\))*\)"), r"\1"),
    (re.compile(r"<(?:[a-z][a-z0-9+.-]{1,31}:[^\s<>]*|[\w.+-]+@[\w.-]+)>", re.IGNORECASE), "link"),
    (re.compile(r"\b(?:https?://|ftp://|www\.)[^\s<>]*[^\s<>.,;:!?'\")\]]", re.IGNORECASE), "link"),
    (re.compile(r"(`{1,3})([^`]+)\1"), r"\2"),
    (re.compile(r"^[ \t]*(?:#{1,6}[ \t]+|[-*+•][ \t]+|[0-9]{1,3}[.)][ \t]+|>[ \t]?)+", re.MULTILINE), ""),
    (re.compile(r"<!--(?:(?!<!--).)*?-->|</?[a-z][^<>]*>", re.IGNORECASE | re.DOTALL), " "),
    (re.compile("\r\n|[\n\r\v\f\x85\u2028\u2029]"), " "),
    # without the zero-width joiner and non-joiner, which emoji and several scripts need
    (re.compile("[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]"), ""),
)
FENCE = re.compile(
    r"^[ \t]*(`{3,}+|~{3,}+)[^`\n]*\n(?:.*?\n)??[ \t]*\1[`~]*[ \t]*$", re.MULTILINE | re.DOTALL
)

PUNCTUATION: tuple[Rule, ...] = (
    (re.compile("[\u2010\u2011]"), "-"),
    (re.compile(r"\.{3,}"), "..."),
    (re.compile(r"([!?])\1+"), r"\1"),
    (re.compile("[-\u2013\u2014]{2,}"), "\u2014"),
    (re.compile("(?<=\\s)[-\u2013](?=\\s)(?!\\s+[0-9$€£¥])"), "\u2014"),
    (re.compile(r"\s+"), " "),
)


def check_text(text: str) -> str:
    """Returns `text` unchanged.

    Raises UsageError on NUL, on a lone surrogate, and on text without speakable characters.
    """
    for index, character in enumerate(text):
        if character == "\0":
            raise UsageError(f"the text has a NUL character at index {index}, expected plain text; remove it")
        if "\ud800" <= character <= "\udfff":
            raise UsageError(
                f"the text has the lone surrogate U+{ord(character):04X} at index {index}, expected Unicode; "
                "save it as UTF-8"
            )
    if not _is_speakable(text):
        raise UsageError(
            f"the text has nothing to speak ({len(text)} characters, all space or control); "
            "give at least one word"
        )
    return text


def clean_text(text: str) -> str:
    """`text` as one line without markup, with currency and large numbers as words, and with a final mark.

    The words are English for text in any language, so the clean-up is optional.
    Raises UsageError if nothing is left.
    """
    text = html.unescape(FENCE.sub(" Code example omitted. ", text))
    text = _spell_amounts(_apply(MARKUP, text))
    text = BIG_NUMBER.sub(_big_number, text)
    text = _apply(PUNCTUATION, _replace_parentheses(text)).strip()
    if not _is_speakable(text):
        raise UsageError(
            "the text has nothing to speak after the clean-up; speak it without clean-up, or give other text"
        )
    return text if text.endswith(tuple(FINAL_MARKS)) else f"{text}."


def number_words(number: int) -> str:
    """English words of a number from 0 to 10**18 - 1, in American style: 1_005 is "one thousand five"."""
    if number == 0:
        return ONES[0]
    groups = [number // 1000**power % 1000 for power in range(len(SCALES))]
    words = [_below_thousand(group) + scale for group, scale in zip(groups, SCALES, strict=True) if group]
    return " ".join(reversed(words))


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    words = [f"{ONES[hundreds]} hundred"] if hundreds else []
    if rest >= 20:
        words.append(TENS[rest // 10] + (f"-{ONES[rest % 10]}" if rest % 10 else ""))
    elif rest:
        words.append(ONES[rest])
    return " ".join(words)


def _is_speakable(text: str) -> bool:
    return not all(
        character.isspace() or unicodedata.category(character).startswith("C") for character in text
    )


def _apply(rules: tuple[Rule, ...], text: str) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


def _spell_amounts(text: str) -> str:
    """Currency as words.

    From the second amount on, dollars below a hundred with cents are short: "four fifty".
    """
    dollars = 0

    def spell(found: re.Match[str]) -> str:
        nonlocal dollars
        dollars += found["symbol"] == "$"
        return _amount(found, is_short=found["symbol"] == "$" and dollars > 1)

    return AMOUNT.sub(spell, text)


def _amount(found: re.Match[str], is_short: bool) -> str:
    whole, decimals, magnitude = _whole(found), found["decimals"] or "", (found["magnitude"] or "").strip()
    if whole >= NUMBER_LIMIT:
        return found[0]
    unit, units, cent, cents = CURRENCIES[found["symbol"]]
    sign = "minus " if found["sign"] else ""
    if magnitude or (decimals.strip("0") and (len(decimals) != 2 or not cent)):
        scale = f" {MAGNITUDES.get(magnitude.lower(), magnitude)}" if magnitude else ""
        return f"{sign}{_decimal_words(whole, decimals)}{scale} {units}"
    hundredths = int(decimals or 0)
    main = f"{number_words(whole)} {unit if whole == 1 else units}"
    if not hundredths:
        return sign + main
    if is_short and 0 < whole < 100:
        return f"{sign}{number_words(whole)} {'oh ' if hundredths < 10 else ''}{number_words(hundredths)}"
    change = f"{number_words(hundredths)} {cent if hundredths == 1 else cents}"
    return f"{sign}{main} and {change}" if whole else sign + change


def _decimal_words(whole: int, decimals: str) -> str:
    digits = decimals.rstrip("0")
    return number_words(whole) + (
        " point " + " ".join(ONES[int(digit)] for digit in digits) if digits else ""
    )


def _big_number(found: re.Match[str]) -> str:
    number = _whole(found)
    return found[0] if number < 1_000_000 else ("minus " if found["sign"] else "") + number_words(number)


def _whole(found: re.Match[str]) -> int:
    """The integer before the decimal point, at most NUMBER_LIMIT: Python does not convert thousands of
    digits.
    """
    digits = found["whole"].replace(",", "")
    return int(digits) if len(digits) <= 18 else NUMBER_LIMIT


def _replace_parentheses(text: str) -> str:
    """Replaces parentheses by em dashes and the symbols in them by words.

    A number stays in its parentheses.
    """
    for _ in range(MAX_NESTING):
        opened = PARENTHESES.sub(_aside, text)
        if opened == text:
            break
        text = opened
    return text


def _aside(found: re.Match[str]) -> str:
    if PURE_NUMBER.fullmatch(found[1]):
        return found[0]
    inner = "".join(
        f" {SYMBOLS[character]} " if character in SYMBOLS else character for character in found[1]
    ).strip()
    return f" \u2014 {inner} \u2014 " if inner else " "
