"""From typed text, in a file, a pipe or a string, to the parts that a model speaks one after another.

Text may still arrive: it is split at sentence ends, and sentences are joined to parts that fit the model.
"""

import codecs
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import chain

import regex
from sentencex import segment

from voxport.bundle.errors import UsageError
from voxport.runtime.text.cleanup import check_text, clean_sentence, is_blank, is_speakable
from voxport.runtime.text.markup import (
    HANGUL,
    IS_WIDE,
    LONE_THOUGHTS,
    PARAGRAPH,
    PAUSE,
    WIDE,
    plain_lines,
)
from voxport.runtime.text.numbers import spell_numbers

BLOCK_BYTES = 65536
MAX_BYTES = 2**24
MIN_PART_CHARACTERS = 60  # shorter sentences are spoken with the next one, because they sound abrupt alone
MIN_PARAGRAPH_CHARACTERS = 20  # characters; shorter paragraphs, such as items of a list, as well
MAX_SENTENCE_CHARACTERS = 2000  # characters; bounds the time on text without sentence ends
BOUNDED = re.compile(rf"(?s).{{1,{MAX_SENTENCE_CHARACTERS}}}")
MAX_JOINED_PIECES = 1000  # pieces of a sentence that are joined; bounds the time
WORD_START = re.compile(r"(?<=\s)(?=\S)")
CLAUSE_END = re.compile("(?<=[,;:\u060c\u061b\u2013\u2014])\\s+")
SPACE = re.compile(r"\s+")
INSIDE_WORD = regex.compile(rf"[!-~]\0(?!{WIDE})")  # at \0 there is no end of a sentence: ASP.NET, x?Y
CHARACTER = regex.compile(r"\X")  # what a reader sees as one character
Fits = Callable[[str], bool]
log = logging.getLogger(__name__)


class NothingToSpeak(UsageError):
    """A text has no word and no number."""


@dataclass(frozen=True)
class TextRules:
    """Rules of a model for its texts.

    Sentences of less than `least_characters` are spoken with the next one. `words_only`: numbers in English
    become words. `by_line`: a line is a paragraph, and a part however short it is.
    """

    least_characters: int = MIN_PART_CHARACTERS
    words_only: bool = False
    by_line: bool = False


USUAL = TextRules()


def prepare(
    text: str | Iterable[str], language: str, fits: Fits, verbatim: bool = False, rules: TextRules = USUAL
) -> Iterator[str]:
    """Yields the parts of a text. Each part comes when its last sentence is complete.

    A pause is a part of its own: `PAUSE` and its milliseconds.

    `text` may arrive in pieces; the parts do not depend on how it is divided. In a `str`, text before a
    `</think>` without a start is left out. `language` is an ISO 639 code. `fits` returns whether a text can
    be spoken in one call. `rules` are the rules of the model. Sentences are cleaned up unless `verbatim`; a
    change is logged at DEBUG. Raises UsageError on NUL and on a lone surrogate, and NothingToSpeak at the end
    of a text without anything to speak.
    """
    is_empty = True
    spoken = _logged(_spoken_sentences(text, language, verbatim, rules))
    least_paragraph = 1 if rules.by_line else MIN_PARAGRAPH_CHARACTERS
    for part in spoken_parts(spoken, fits, rules.least_characters, least_paragraph):
        is_empty &= part.startswith(PAUSE)
        yield part
    if is_empty:
        raise _nothing_to_speak(verbatim)


def check_speakable(text: Iterable[str], language: str, verbatim: bool) -> None:
    """Raises the errors of `prepare` for a whole text, without logging changes."""
    spoken = (sentence for _, sentence in _spoken_sentences(text, language, verbatim))
    if not any(sentence and not sentence.startswith(PAUSE) for sentence in spoken):
        raise _nothing_to_speak(verbatim)


def _spoken_sentences(
    text: str | Iterable[str], language: str, verbatim: bool, rules: TextRules = USUAL
) -> Iterator[tuple[str, str]]:
    """Each sentence as typed and as it is spoken; the second is empty if there is nothing to speak, and
    both are at the end of a paragraph.
    """
    if isinstance(text, str):
        text = [text if verbatim else LONE_THOUGHTS.sub("", text)]
    pieces: Iterable[str] = map(_checked, text)
    if rules.by_line:
        pieces = (piece.replace("\n", PARAGRAPH) for piece in pieces)
    if verbatim:
        for sentence in sentences(pieces, language):
            yield sentence, "" if is_blank(sentence) else sentence
        return
    for sentence in sentences(plain_lines(pieces), language):
        if sentence.startswith(PAUSE):
            yield sentence, sentence
            continue
        cleaned = clean_sentence(sentence, language)
        yield sentence, spell_numbers(cleaned) if rules.words_only and language == "en" else cleaned


def _logged(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    for typed, spoken in pairs:
        if typed != spoken:
            log.debug("clean-up: %r became %r", typed, spoken)
        if spoken or not typed:
            yield spoken


def _checked(piece: object) -> str:
    if not isinstance(piece, str):
        raise UsageError(f"text: a piece is a {type(piece).__name__}, expected str", field="text")
    return check_text(piece)


def _nothing_to_speak(verbatim: bool) -> NothingToSpeak:
    found = "only spaces" if verbatim else "no word or number"
    return NothingToSpeak(f"text: has {found}, so there is nothing to speak", field="text")


def read_text(source: BufferedIOBase, name: str) -> Iterator[str]:
    """Pieces of a UTF-8 text as they arrive, or of a UTF-16 text that begins with a byte order mark.

    Raises UsageError, which names the source, on other bytes and behind `MAX_BYTES`.
    """
    block = source.read1(BLOCK_BYTES)
    if len(block) == 1:  # half of a mark
        block += source.read1(BLOCK_BYTES)
    is_wide = block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    decoder = codecs.getincrementaldecoder("utf-16" if is_wide else "utf-8-sig")()
    size = 0
    while True:
        try:
            piece = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            where = f"at byte {size - len(error.object) + len(block) + error.start}"
            reason = (
                f"it ends in the middle of a character {where}" if not block else f"{error.reason} {where}"
            )
            raise UsageError(
                f"{name}: {reason}; expected UTF-8 text, or UTF-16 with a byte order mark"
            ) from None
        if not block:
            return
        size += len(block)
        if size > MAX_BYTES:
            raise UsageError(f"{name}: longer than {MAX_BYTES} bytes, 11 days of speech; split the text")
        if piece:
            yield piece
        block = source.read1(BLOCK_BYTES)


def read_speakable(pieces: Iterable[str], language: str, verbatim: bool) -> str:
    """All pieces as one text. Raises UsageError if the text has nothing to speak."""
    read = "".join(pieces)
    check_speakable(read, language, verbatim)
    return read


def await_speakable(pieces: Iterable[str], language: str, verbatim: bool) -> Iterable[str]:
    """Reads up to the first letter or digit, and returns the same pieces with those that are still to come.

    Raises UsageError if the text ends before it.
    """
    source, read = iter(pieces), []
    for piece in source:
        read.append(piece)
        if is_speakable(piece):
            return chain(read, source)
    return read_speakable(read, language, verbatim)


def sentences(pieces: Iterable[str], language: str) -> Iterator[str]:
    """Sentences without space at their ends, each as soon as the next one begins or a paragraph ends.

    `pieces` are the text in any division, which does not change the sentences. `language` is an ISO 639 code.
    A paragraph ends a sentence, and so does a word behind `MAX_SENTENCE_CHARACTERS` characters. An empty
    string follows the last sentence of a paragraph. The sentences have every letter of the text.
    """
    text, arrived = "", ""
    for piece in chain(pieces, [None]):
        if piece and not SPACE.search(arrived[-1:] + piece):
            *words, arrived = BOUNDED.findall(arrived + piece)
        else:
            *words, arrived = map(_with_short_end, WORD_START.split(arrived + (piece or "")))
        if piece is None or arrived.endswith(PARAGRAPH):  # otherwise the last word may continue
            words, arrived = [*words, arrived], ""
        for word in chain.from_iterable(map(BOUNDED.findall, words)):
            *whole, text = _segments(text + word, language)
            yield from whole
            is_end = word.endswith(PARAGRAPH)
            if text and (len(text) > MAX_SENTENCE_CHARACTERS or is_end):
                yield text.strip()
                text = ""
                yield from [""] * is_end
    if text.strip():
        yield text.strip()


def _with_short_end(word: str) -> str:
    """`word` with the end of a paragraph or a line, or one blank, in place of the space at its end.

    A blank of Chinese stays, and so does one behind a digit, because it may be inside of a number.
    """
    stripped = word.rstrip()
    lines, blank = word.count("\n", len(stripped)), word[len(stripped) :][:1]
    is_kept = blank == "\u3000" or stripped[-1:].isdigit()
    return stripped + ("\n" * min(lines, 2) or (blank if is_kept else " " * bool(blank)))


def spoken_parts(
    sentences: Iterable[str],
    fits: Fits,
    least: int = MIN_PART_CHARACTERS,
    least_paragraph: int = MIN_PARAGRAPH_CHARACTERS,
) -> Iterator[str]:
    """Yields parts of one or several sentences, of at least `least` characters if a text has them. Each
    part comes when its last sentence is complete.

    An empty sentence ends a paragraph, and with it a part of at least `least_paragraph` characters.
    `fits` returns whether a text can be spoken in one call. It is true of every text that is shorter than one
    that fits. A sentence that does not fit is split at clauses, then at spaces, then between characters. A
    pause ends a part and is one itself.
    """
    part = ""
    for sentence in sentences:
        if not sentence and len(part) >= least_paragraph:
            yield part
            part = ""
        if not sentence:
            continue
        if sentence.startswith(PAUSE):
            yield from filter(None, (part, sentence))
            part = ""
            continue
        between = "" if IS_WIDE.search(part) and not HANGUL.match(sentence) else " "
        joined = f"{part}{between}{sentence}".strip()
        if part and not fits(joined):
            yield part
            joined = sentence
        *whole, part = _fitting(joined, fits)
        yield from whole
        if len(part) >= least:
            yield part
            part = ""
    if part:
        yield part


def _segments(text: str, language: str) -> list[str]:
    """The sentences of `text`; the last one keeps the space at its end. Never empty."""
    found = list[str]()
    for sentence in filter(str.strip, segment(language, text)):
        if found and INSIDE_WORD.search(f"{found[-1][-1:]}\0{sentence[:1]}"):
            sentence = found.pop() + sentence
        found.append(sentence)
    return [*(sentence.strip() for sentence in found[:-1]), found[-1].lstrip()] if found else [""]


def _fitting(text: str, fits: Fits) -> list[str]:
    """`text` in pieces that fit; as few as possible at the first kind of place where all of them do."""
    if fits(text):
        return [text]
    for places in (CLAUSE_END, SPACE):
        pieces = _joined(places.split(text), " ", fits)
        if all(map(fits, pieces)):
            return pieces
    return [piece for word in _joined(SPACE.split(text), " ", fits) for piece in _divided(word, fits)]


def _divided(word: str, fits: Fits) -> list[str]:
    return [word] if fits(word) else _joined(CHARACTER.findall(word), "", fits)


def _joined(pieces: list[str], between: str, fits: Fits) -> list[str]:
    """As many neighbours together as fit."""
    found, start = [], 0
    while start < len(pieces):
        ends = range(start + 1, min(len(pieces), start + MAX_JOINED_PIECES) + 1)
        fitting = bisect_left(ends, True, key=lambda end: not fits(between.join(pieces[start:end])))
        end = start + max(1, fitting)
        found.append(between.join(pieces[start:end]))
        start = end
    return found
