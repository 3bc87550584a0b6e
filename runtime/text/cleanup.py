"""Checks of text, and the clean-up of a sentence: markup, addresses, symbols, quotes, amounts."""

import re
import unicodedata
from collections.abc import Callable
from functools import cache
from urllib.parse import urlsplit

import emoji
import ftfy
from markdown_it import MarkdownIt

from bundle.errors import UsageError
from runtime.text.amounts import spell_amounts

# Far above any context. The pattern of tekken.json overflows on a million blanks in a row.
MAX_TEXT_CHARACTERS = 500_000
FINAL_MARKS = ".!?…؟。।॥"
OTHER_MARKS = ",;:،؛\u2014"  # a sentence that ends in one gets no full stop
CLOSING = ")]}"

# language: the words for ".", "/" and "@" in an address; other languages use those of English
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

# of HTML, or of the markup of speech and chat; `x <y and z>` is neither
TAG = re.compile(
    r"<(?:[!?]|/|(?:a|abbr|b|big|blockquote|br|center|cite|code|del|details|div|em|font|h[1-6]|hr|html|i|img"
    r"|ins|kbd|li|mark|ol|p|pre|q|s|small|span|strong|style|sub|summary|sup|t[abdhr]\w*|u|ul|wbr"
    r"|speak|break|emphasis|prosody|phoneme|say-as|voice)\b|[\w-]+/?>|[\w-]+\s[\w-]+=)",
    re.IGNORECASE,
)
PRODUCT = re.compile(r"(?<=[0-9])\*(?=[0-9])")  # 2*3*4 is no emphasis
KEYCAP = re.compile("\ufe0f?\u20e3")  # of a digit in a box, which stays as a digit
SPACE = re.compile(r"\s+")
KEPT_SYMBOLS = "°№℃℉℅"  # symbols that are words
QUOTED = re.compile(r'"([^"]*)"')
LONE_QUOTE = re.compile(r'(?<![0-9])"')  # behind a digit it means inches
SINGLE_QUOTED = re.compile(r"(?<!\w)'(?=[^\s\d])((?:[^']|(?<=\w)'(?=\w))*)(?<=\S)'(?!\w)")
HALVES = (
    re.compile(r"^['\u2018](?=[^\W\d_]{2}|[A-Z]\s)"),
    re.compile(r"(?<=[.!?\u2026,])['\u2019]+(?=\s|$)"),
    re.compile(r"(?<!\S)(?:\*{1,3}|_{1,3}|~~|`)(?=\w)"),
    re.compile(r"(?<=[\w.!?,])(?:\*{1,3}|_{2,3}|~~|`)(?!\S)"),
)
GUILLEMETS = re.compile("[\u00ab\u2039]\\s*|\\s*[\u00bb\u203a]")
PARENTHESES = re.compile(r"(?<!\w)\(([^()]*)\)")
PURE_NUMBER = re.compile(r"\s*[-+\u2212]?[0-9][0-9.,]*\s*")

Rule = tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]
PUNCTUATION: tuple[Rule, ...] = (
    # not the joiners, which several scripts need
    (
        re.compile(
            "[\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe0f\ufeff]"
        ),
        "",
    ),
    (
        re.compile(r"[\u2190-\u21ff\u2500-\u25ff\u27f0-\u27ff\u2900-\u297f\u2b00-\u2bff]"),
        " ",
    ),  # arrows, shapes
    (re.compile(r"(?<!\S)[:;=]['-]?[()\[\]DPp/\\|*]+(?=$|[\s.,!?])"), ""),  # faces of punctuation
    (re.compile(r"\|\s*$"), ""),
    (re.compile(r"\s*\|\s*"), ", "),  # cells of a table
    (re.compile(r"\(\s*\)"), ""),
    (re.compile("[\u2010\u2011]"), "-"),
    (re.compile(r"(?<=\w)\s*[-\u2013\u2014]{2,}\s*(?=\w)"), " \u2014 "),
    (re.compile(r"([*_~^=#\\/<>+•·$%&@|-])(?:\s?\1){2,}"), " "),  # a rule or an ornament of one symbol
    (re.compile(r"(?<!\S)[*_~^=#\\/<>+•·$%&@|-]{2,}(?!\S)"), " "),  # an ornament of several symbols
    (re.compile(r"[.\u2026]*(?:\.{3,}|\u2026)[.\u2026]*"), "\u2026"),
    (re.compile(r"(?<!\.)\.\.(?!\.)"), "."),
    (re.compile(r"[!?]*\?[!?]*"), "?"),
    (re.compile(r"([!,;:،؛؟।¡¿])(?:\s*\1)+"), r"\1"),
    (re.compile("(?<=\\s)[-\u2013](?=\\s)(?!\\s+[0-9$€£¥])"), "\u2014"),
    (re.compile(r"^[\s,;:\u2014]+|[\s\u2014]+$"), ""),
    (re.compile(r",\s*(?=[,.!?\u2026])"), ""),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<=\w) (?=[,.!?\u2026](?:\s|$))"), ""),
)


def check_text(text: str, field: str | None = None) -> str:
    """Returns `text` unchanged. Raises UsageError, of `field`, on NUL and on a lone surrogate."""
    name = field or "the text"
    for index, character in enumerate(text):
        if character == "\0":
            raise UsageError(
                f"{name} has a NUL character at index {index}, expected plain text; remove it", field=field
            )
        if "\ud800" <= character <= "\udfff":
            raise UsageError(
                f"{name} has the lone surrogate U+{ord(character):04X} at index {index}, expected Unicode; "
                "save it as UTF-8",
                field=field,
            )
    return text


def clean_sentence(text: str, language: str) -> str:
    """`text` as one line of words with a final mark; empty where it has no letter and no digit.

    Repairs wrong encodings. Removes markup, emoji, ornaments and quotes, reads addresses as words, and spells
    amounts. `language` is an ISO 639 code.
    """
    cleaned = _inline_text(PRODUCT.sub(r"\*", ftfy.fix_text(text)))
    cleaned = URL.sub(lambda found: _read_url(found[0], language), cleaned)
    cleaned = EMAIL.sub(lambda found: _read_host(found[0], language), cleaned)
    cleaned = emoji.replace_emoji(KEYCAP.sub("", cleaned), " ")
    cleaned = "".join(" " if _is_pictograph(character) else character for character in cleaned)
    cleaned = SPACE.sub(" ", cleaned)  # many blanks would make later patterns slow
    cleaned = spell_amounts(_without_quotes(cleaned), language)
    cleaned = PARENTHESES.sub(_aside, cleaned)
    for pattern, replacement in PUNCTUATION:
        cleaned = pattern.sub(replacement, cleaned)
    return _with_final_mark(cleaned.strip(), language) if is_speakable(cleaned) else ""


def is_speakable(text: str) -> bool:
    """Whether `text` has a letter or a digit."""
    return any(unicodedata.category(character)[0] in "LN" for character in text)


def is_blank(text: str) -> bool:
    """Whether `text` has only space and control characters."""
    return all(character.isspace() or unicodedata.category(character)[0] == "C" for character in text)


@cache
def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("strikethrough")


def _inline_text(text: str) -> str:
    """The text of inline Markdown and HTML, without emphasis, tags and targets of links."""
    spaces = {"softbreak": " ", "hardbreak": " ", "html_inline": " "}
    tokens = _markdown().parseInline(text)[0].children or []
    return "".join(
        token.content
        if token.type == "html_inline" and not TAG.match(token.content)
        else spaces.get(token.type, token.content)
        for token in tokens
    )


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


def _is_pictograph(character: str) -> bool:
    return unicodedata.category(character) in ("So", "Co", "Cn") and character not in KEPT_SYMBOLS


def _without_quotes(text: str) -> str:
    """Quotes around phrases make Voxtral-TTS speak words that are not in the text."""
    text = LONE_QUOTE.sub("", QUOTED.sub(r"\1", GUILLEMETS.sub("", text)))
    text = SINGLE_QUOTED.sub(r"\1", text)
    for half in HALVES:  # of quotes and markup that begin in one sentence and end in another
        text = half.sub("", text)
    return text


def _aside(found: re.Match[str]) -> str:
    inner = found[1].strip()
    if PURE_NUMBER.fullmatch(inner):
        return found[0]
    return f" \u2014 {inner} \u2014 " if inner else " "


def _with_final_mark(text: str, language: str) -> str:
    if text.rstrip(CLOSING).endswith(tuple(FINAL_MARKS + OTHER_MARKS)):
        return text
    return f"{text}{'।' if language == 'hi' else '.'}"
