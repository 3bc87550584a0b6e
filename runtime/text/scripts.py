"""The check that a model can read the script of a text."""

from collections.abc import Iterable, Iterator
from html import unescape

import regex

from bundle.errors import UsageError

# Scripts, each with the codes of the languages that use it. Every language also uses Latin.
SCRIPTS = (
    "Arabic ar ckb fa ps sd ug ur, Armenian hy, Bengali as bn, Bopomofo zh, Cyrillic ba be bg kk ky mk mn ru "
    "sr tg tt uk, Devanagari hi mr ne sa, Ethiopic am ti, Georgian ka, Greek el, Gujarati gu, Gurmukhi pa, "
    "Han cmn ja ko yue zh, Hangul ko, Hebrew he yi, Hiragana ja, Kannada kn, Katakana ja, Khmer km, Lao lo, "
    "Malayalam ml, Myanmar my, Oriya or, Sinhala si, Tamil ta, Telugu te, Thai th, Tibetan bo"
)
LANGUAGES_OF_SCRIPT = {row.split()[0]: frozenset(row.split()[1:]) for row in SCRIPTS.split(",")}
MARKUP = regex.compile(r"<[^<>]*>|\S+://\S+")  # is not spoken as it is written
LETTERS = regex.compile(r"\p{L}+")


class ScriptCheck:
    """Counts the letters of a text that may arrive in pieces. Refuses it as soon as most of them are of
    scripts that no language of the model uses.
    """

    def __init__(self, languages: Iterable[str]):
        """`languages`: ISO 639 codes of the model."""
        self._languages = tuple(languages)
        known = [script for script, codes in LANGUAGES_OF_SCRIPT.items() if codes & {*self._languages}]
        readable = "".join(rf"\p{{{script}}}" for script in ("Latin", "Common", "Inherited", *known))
        self._foreign = regex.compile(rf"[\p{{L}}--[{readable}]]+", regex.V1)
        self._letters = self._foreign_letters = 0

    def add(self, text: str) -> None:
        """Takes the next piece of the text. Raises UsageError."""
        text = unescape(MARKUP.sub("", text))
        foreign = self._foreign.findall(text)
        self._letters += sum(map(len, LETTERS.findall(text)))
        self._foreign_letters += sum(map(len, foreign))
        if 2 * self._foreign_letters > self._letters and self._languages:
            names = (name for name in LANGUAGES_OF_SCRIPT if regex.match(rf"\p{{{name}}}", foreign[0]))
            raise UsageError(
                "text: most of its letters are of a script that the model does not speak "
                f"({next(names, 'a rare one')}); its languages are {', '.join(self._languages)}",
                field="text",
            )

    def checked(self, parts: Iterable[str]) -> Iterator[str]:
        """The same parts. Raises UsageError in place of the part with which the text is refused."""
        for part in parts:
            self.add(part)
            yield part
