"""Checks that a model has a language, and reads the script of a text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from html import unescape
from itertools import groupby

import regex

from voxport.bundle.errors import UsageError
from voxport.bundle.names import NAMES, language_code
from voxport.runtime.text.preparation import NothingToSpeak

AUTO = "auto"  # the model decides
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


def check_language(language: str, known: tuple[str, ...] = ()) -> str | None:
    """ISO 639 code of a code, a code with a region, or an English name; None for `auto`.

    Raises UsageError on anything else, and on a code that is not `known`, if any is.
    """
    if str(language).lower() == AUTO:
        return None
    found = language_code(language)
    if found is None:
        raise UsageError(
            f"language {language!r}: unknown; expected {AUTO}, an ISO 639 code as in fr, or one of "
            f"{', '.join(NAMES)}",
            field="language",
        )
    if known and found not in known:
        raise UsageError(
            f"language {language!r}: this model does not have it; it has {', '.join((AUTO, *known))}",
            field="language",
        )
    return found


def without_repeats(languages: Iterable[str]) -> list[str]:
    """Languages of parts of a recording, without empty ones and without repetitions in a row."""
    return [language for language, _ in groupby(filter(None, languages))]


def readable_parts(
    text: str | Iterable[str], prepare: Callable[[], Iterator[str]], languages: Sequence[str]
) -> Iterator[str]:
    """The parts that `prepare` makes of a text.

    Raises UsageError if most letters are of scripts that none of `languages`, codes of ISO 639, uses. If the
    text still arrives, the letters so far count, and the error is raised in place of a part.
    """
    check = ScriptCheck(languages)
    if not isinstance(text, Sequence):
        return map(check.checked, prepare())
    try:
        check.checked("".join(map(str, text)))
    except UsageError:  # what is not spoken may be foreign
        with suppress(NothingToSpeak):  # is raised in place of the first part
            ScriptCheck(languages).checked(" ".join(prepare()))
    return prepare()


class ScriptCheck:
    """Counts the letters of a text, and those that a model of some languages does not read."""

    def __init__(self, languages: Sequence[str]):
        self._languages = languages
        known = [script for script, codes in LANGUAGES_OF_SCRIPT.items() if codes & {*languages}]
        readable = "".join(rf"\p{{{script}}}" for script in ("Latin", "Common", "Inherited", *known))
        self._foreign = regex.compile(rf"[\p{{L}}--[{readable}]]+", regex.V1)
        self._letters = self._foreign_letters = 0

    def checked(self, piece: str) -> str:
        """The next piece of the text, unchanged. Raises UsageError if most letters so far are foreign."""
        words = unescape(MARKUP.sub("", piece))
        foreign = self._foreign.findall(words)
        self._letters += sum(map(len, LETTERS.findall(words)))
        self._foreign_letters += sum(map(len, foreign))
        if 2 * self._foreign_letters > self._letters and self._languages:
            names = (name for name in LANGUAGES_OF_SCRIPT if regex.match(rf"\p{{{name}}}", foreign[0]))
            raise UsageError(
                "text: most of its letters are of a script that the model does not speak "
                f"({next(names, 'a rare one')}); its languages are {', '.join(self._languages)}",
                field="text",
            )
        return piece
