"""Checks of text, and the clean-up of a sentence: markup, addresses, symbols, quotes, amounts."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import regex

from voxport.bundle.errors import UsageError
from voxport.runtime.text.markup import HANGUL, MARK, WIDE
from voxport.runtime.text.numbers import english_groups, spell_amounts

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

# Far above any context. The pattern of tekken.json overflows on a million blanks in a row.
MAX_TEXT_CHARACTERS = 500_000
FINAL_MARKS = ".!?…؟。।॥"
OTHER_MARKS = ",;:،؛\u2014"  # a sentence that ends in one gets no full stop
WIDE_MARKS = "\u3002\uff01\uff1f\uff61\uff1b\uff1a\uff0c\u3001\uff5e\u301c"
CLOSING = ")]}\"'\u201d\u2019\uff09\uff3d\u300d\u300f\u3011\u3009\u300b"
CJK = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
LINE_END_IN_CJK = regex.compile(rf"(?<=(?![{WIDE_MARKS}\u3000]){WIDE})\s*\n\s*(?={WIDE})")
GAP = "\0"  # in place of what is left out
GAPS_IN_CJK = regex.compile(rf"(?<={WIDE})\0+(?={WIDE})")
BLANKS_IN_CJK = ((re.compile(r"[^\S\u3000]+"), " "),)

# language: the words for ".", "/" and "@" in an address; other languages use the English words
ADDRESS_WORDS = {
    "ar": ("نقطة", "سلاش", "آت"),
    "de": ("Punkt", "Schrägstrich", "ät"),
    "en": ("dot", "slash", "at"),
    "es": ("punto", "barra", "arroba"),
    "fr": ("point", "slash", "arobase"),
    "hi": ("डॉट", "स्लैश", "ऐट"),
    "it": ("punto", "barra", "chiocciola"),
    "nl": ("punt", "slash", "apenstaartje"),
    "pt": ("ponto", "barra", "arroba"),
}
URL = re.compile(r"\b(?:(?:https?|ftp)://|www\.)[^\s<>\"]*[^\s<>\".,;:!?')\]]", re.IGNORECASE)
EMAIL = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b")
WORDY = re.compile(r"[^\W\d_]{1,24}(?:[-_.][^\W\d_]{1,24})*")  # a part of a path that can be read as words

PRODUCT = re.compile(r"(?<=\w)\*(?=\w)")  # 2*3*4 is no emphasis
MARKUP = re.compile(r"[\\`*_~\[<&\r\n]")  # without these, inline Markdown is its own text
INSIDE_WORD = ("text", "em_open", "em_close", "strong_open", "strong_close")  # **N**atural is one word
KEYCAP = re.compile("\ufe0f?\u20e3")  # frame of a digit in a box, which stays as a digit
SPACE = re.compile(r"\s+")
ARROW = re.compile(r"[\u2190-\u21ff\u2500-\u25ff\u27f0-\u27ff\u2900-\u297f\u2b00-\u2bff]")  # and shapes
KEPT_SYMBOLS = "°№℃℉℅"  # symbols that are words
QUOTED = re.compile(r'(?<![0-9])"([^"]*)"')
LONE_QUOTE = re.compile(r'(?<![0-9])"')  # behind a digit it means inches
SINGLE_QUOTED = re.compile(r"(?<!\w)'(?=[^\s\d])((?:[^']|(?<=\w)'(?=\w))*)(?<=\S)'(?!\w)")
HALVES = (
    re.compile(r"^['\u2018](?=[^\W\d_]{2}|[A-Z]\s)"),
    re.compile(r"(?<=[.!?\u2026,])['\u2019]+(?=\s|$)"),
    re.compile(r"(?<!\S)(?:\*{1,3}|_{1,3}|~~|`)(?=\w)"),
    re.compile(r"(?<=[\w.!?,])(?:\*{1,3}|_{2,3}|~~|`)(?!\S)"),
)
GUILLEMETS = re.compile("(?:\\s*[\u00ab\u2039\u00bb\u203a])+\\s*")
CLOSED = re.compile(r"[)\]}.,;:!?\u2026](?!\w)")
PARENTHESES = re.compile(r"(?<!\w)\(([^()]*)\)")
PURE_NUMBER = re.compile(r"\s*[-+\u2212]?[0-9][0-9.,]*\s*")

Rule = tuple[re.Pattern[str] | regex.Pattern[str], str]
REMOVED: tuple[Rule, ...] = (
    (regex.compile(r"(?![\u200c\u200d])\p{Default_Ignorable_Code_Point}"), ""),
    (re.compile("(?<![\u0590-\u1cff])[\u200c\u200d]+"), ""),  # joiners, except in scripts that need them
    (re.compile(r"(?<!\S)[:;=]['-]?[()\[\]DPp/\\|*]+(?=$|[\s.,!?])"), ""),  # faces of punctuation
    (re.compile(r"\|\s*$"), ""),
    (re.compile(r"\s*\|\s*"), ", "),  # cells of a table
    (re.compile(r"(?<=\w)(?:\(\s*\))+(?=\w)"), " "),
    (re.compile(r"\(\s*\)"), ""),
)
REPAIRED: tuple[Rule, ...] = (
    (re.compile("[\u2010\u2011]"), "-"),
    (re.compile(r"(?<=\w)\s*[-\u2013\u2014]{2,}\s*(?=\w)"), " \u2014 "),
    (re.compile(r"([*_~^=#\\/<>+•·$%&@|-])(?:\s?\1){2,}"), " "),  # a rule or an ornament of one symbol
    # an ornament of several symbols, not an operator
    (re.compile(r"(?<!\S)(?!(?:[<>=]=|&&|\+-)(?!\S))[*_~^=#\\/<>+•·$%&@|-]{2,}(?!\S)"), " "),
    (re.compile(r"[.\u2026]*(?:\.{3,}|\u2026)[.\u2026]*"), "\u2026"),
    (re.compile(r"(?<!\.)\.\.(?![.\w/])"), "."),
    (re.compile(r"[!?]*\?[!?]*"), "?"),
    (re.compile(r"([!,;،؛؟।¡¿])(?:\s*\1)+"), r"\1"),
    (re.compile(r":(?:\s*:)+(?!\w)"), ":"),
    (re.compile("(?<=\\s)[-\u2013](?=\\s)(?!\\s+[0-9$€£¥])"), "\u2014"),
    (re.compile(r"^[\s,;:\u2014]+|[\s\u2014]+$"), ""),
    (re.compile(r",\s*(?=[,.!?\u2026](?!\w))"), ""),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<=\w) (?=[,.!?\u2026](?:\s|$))"), ""),
)


def check_text(text: str, field: str | None = None) -> str:
    """Returns `text` unchanged. Raises UsageError, of `field`, on NUL and on a lone surrogate."""
    name = field or "the text"
    for index, character in enumerate(text):
        if character == "\0":
            raise UsageError(
                f"{name} has a NUL character at index {index}, expected plain text; "
                "save it as UTF-8, or remove the character",
                field=field,
            )
        if "\ud800" <= character <= "\udfff":
            raise UsageError(
                f"{name} has the lone surrogate U+{ord(character):04X} at index {index}, expected Unicode; "
                "save it as UTF-8",
                field=field,
            )
    return text


def clean_sentence(text: str, language: str) -> str:
    """`text` as one line of words with a final mark; empty if it has no letter and no digit.

    Repairs wrong encodings. Removes markup, emoji, ornaments and quotes, reads addresses as words, and spells
    amounts. `language` is an ISO 639 code.
    """
    is_cjk = _is_cjk(text, language)
    text = LINE_END_IN_CJK.sub("\u3001" if language == "ja" else "\uff0c", text)
    cleaned = _inline_text(PRODUCT.sub(r"\*", _repaired(text, is_cjk)))
    cleaned = URL.sub(lambda found: _read_url(found[0], language), cleaned)
    cleaned = EMAIL.sub(lambda found: _read_host(found[0], language), cleaned)
    cleaned = _without_pictographs(cleaned)
    cleaned = GAPS_IN_CJK.sub("", cleaned).replace(GAP, " ")
    if language == "en":
        cleaned = english_groups(cleaned)
    if not is_cjk:
        cleaned = _without_quotes(SPACE.sub(" ", cleaned))  # many blanks would make later patterns slow
        cleaned = PARENTHESES.sub(_aside, spell_amounts(cleaned, language))
    for pattern, replacement in REMOVED + (BLANKS_IN_CJK if is_cjk else REPAIRED):
        cleaned = pattern.sub(replacement, cleaned)
    return _with_final_mark(cleaned.strip(), language) if is_speakable(cleaned) else ""


def is_speakable(text: str) -> bool:
    """Whether `text` has a letter or a digit."""
    return any(unicodedata.category(character)[0] in "LN" for character in text)


def is_blank(text: str) -> bool:
    """Whether `text` has only space and control characters."""
    return all(character.isspace() or unicodedata.category(character)[0] == "C" for character in text)


# The packages below take 0.1 s to import, so plain English does without them.


def _repaired(text: str, is_cjk: bool) -> str:
    if text.isascii() and text.isprintable() and "&" not in text:
        return text
    import ftfy

    return ftfy.fix_text(text, fix_character_width=not is_cjk, uncurl_quotes=not is_cjk)


def _without_pictographs(text: str) -> str:
    if text.isascii():
        return text
    import emoji

    text = emoji.replace_emoji(KEYCAP.sub("", text), GAP)
    return "".join(GAP if _is_pictograph(character) else character for character in text)


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("strikethrough")


def _inline_text(text: str) -> str:
    """The text of inline Markdown, without emphasis, targets of links, and tags that were escaped."""
    if not MARKUP.search(text):
        return text
    found, is_apart = "", False
    for token in _markdown().parseInline(text)[0].children or []:
        is_tag = token.type == "html_inline" and MARK.match(token.content)
        content = GAP if is_tag or token.type in ("softbreak", "hardbreak") else token.content
        is_apart |= token.type not in INSIDE_WORD
        if content:
            is_number = found[-1:].isdigit() and content[0].isdigit()
            is_joined = found[-1:].isalnum() and content[0].isalnum()
            found += GAP * (is_number or (is_apart and is_joined)) + content
            is_apart = token.type in ("image", "code_inline")
    return found


def _read_url(url: str, language: str) -> str:
    """The host and the first parts of the path as words.

    The scheme, a query, and the path from its first part that has digits or symbols are left out.
    """
    _, slash, _ = _address_words(language)
    parts = urlsplit(url if "://" in url else f"//{url}")
    words = [_read_host(parts.netloc.rpartition("@")[2].removeprefix("www."), language)]
    for part in filter(None, parts.path.split("/")):
        if not WORDY.fullmatch(part):
            break
        words += [slash, _read_host(part, language).replace("-", " ").replace("_", " ")]
    return " ".join(words)


def _read_host(host: str, language: str) -> str:
    dot, _, at = _address_words(language)
    return host.replace(".", f" {dot} ").replace("@", f" {at} ")


def _address_words(language: str) -> tuple[str, str, str]:
    return ADDRESS_WORDS.get(language, ADDRESS_WORDS["en"])


def _is_cjk(text: str, language: str) -> bool:
    """Whether marks and blanks stay as they are. The language decides if there is no letter of CJK."""
    is_wide = not {*WIDE_MARKS}.isdisjoint(text) or not any(map(str.isalpha, text))
    return bool(CJK.search(text)) or (language in ("ja", "zh") and is_wide)


def _is_pictograph(character: str) -> bool:
    is_symbol = (
        unicodedata.category(character) in ("So", "Co", "Cn") and not "\u3200" <= character <= "\u33ff"
    )
    return bool(ARROW.match(character)) or (is_symbol and character not in KEPT_SYMBOLS)


def _without_quotes(text: str) -> str:
    """Quotes around phrases make Voxtral-TTS speak words that are not in the text."""
    text = GUILLEMETS.sub(_unquoted, LONE_QUOTE.sub("\u00ab", QUOTED.sub("\u00ab\\1\u00bb", text)))
    text = SINGLE_QUOTED.sub(r"\1", text)
    for half in HALVES:  # quotes and markup that begin in one sentence and end in another
        text = half.sub("", text)
    return text


def _unquoted(found: re.Match[str]) -> str:
    """A blank if a quote separates words."""
    before, behind = found.string[: found.start()][-1:], found.string[found.end() : found.end() + 1]
    is_apart = found[0] != found[0].strip() and not (
        before in "([{" or CLOSED.match(found.string, found.end())
    )
    return " " * bool(behind and before and (is_apart or (before.isalnum() and behind.isalnum())))


def _aside(found: re.Match[str]) -> str:
    inner = found[1].strip()
    if PURE_NUMBER.fullmatch(inner):
        return found[0]
    return f" \u2014 {inner} \u2014 " if inner else " "


def _with_final_mark(text: str, language: str) -> str:
    if text.rstrip(CLOSING).endswith(tuple(FINAL_MARKS + OTHER_MARKS + WIDE_MARKS)):
        return text
    is_wide = _is_cjk(text, language) and not HANGUL.search(text)
    return text + ("\u3002" if is_wide else "।" if language == "hi" else ".")
