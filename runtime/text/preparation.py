"""From typed text, in a file, a pipe or a string, to the parts that a model speaks one after another."""

import codecs
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedIOBase
from itertools import chain

from voxport.bundle.errors import UsageError
from voxport.runtime.text.cleanup import check_text, clean_sentence, is_blank, is_speakable
from voxport.runtime.text.markup import LONE_THOUGHTS, PAUSE, plain_lines
from voxport.runtime.text.numbers import spell_numbers
from voxport.runtime.text.splitting import MIN_PART_CHARACTERS, Fits, sentences, spoken_parts

BLOCK_BYTES = 65536
MAX_BYTES = 2**24
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextRules:
    """What a model needs of its texts.

    Sentences of less than `least_characters` are spoken with the next one. `words_only`: numbers in English
    become words.
    """

    least_characters: int = MIN_PART_CHARACTERS
    words_only: bool = False


USUAL = TextRules()


def prepare(
    text: str | Iterable[str], language: str, fits: Fits, verbatim: bool = False, rules: TextRules = USUAL
) -> Iterator[str]:
    """Yields the parts of a text. Each part comes when its last sentence is complete.

    A pause is a part of its own: `PAUSE` and its milliseconds.

    `text` may arrive in pieces; the parts do not depend on how it is divided. In a `str`, text before a
    `</think>` without a start is left out. `language` is an ISO 639 code. `fits` returns whether a text can
    be spoken in one call. `rules` are the rules of the model. Sentences are cleaned up unless `verbatim`; a
    change is logged at DEBUG. Raises UsageError on NUL, on a lone surrogate, and at the end of a text without
    anything to speak.
    """
    is_empty = True
    spoken = _logged(_spoken_sentences(text, language, verbatim, rules))
    for part in spoken_parts(spoken, fits, rules.least_characters):
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


def _nothing_to_speak(verbatim: bool) -> UsageError:
    found = "only spaces" if verbatim else "no word or number"
    return UsageError(f"text: has {found}, so there is nothing to speak", field="text")


def read_text(source: BufferedIOBase, name: str) -> Iterator[str]:
    """Pieces of a UTF-8 text as they arrive.

    Raises UsageError, which names the source, on other bytes and behind `MAX_BYTES`.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    size = 0
    while True:
        block = source.read1(BLOCK_BYTES)
        try:
            piece = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            where = f"at byte {size - len(error.object) + len(block) + error.start}"
            reason = (
                f"it ends in the middle of a character {where}" if not block else f"{error.reason} {where}"
            )
            raise UsageError(f"{name}: {reason}; expected UTF-8 text") from None
        if not block:
            return
        size += len(block)
        if size > MAX_BYTES:
            raise UsageError(f"{name}: longer than {MAX_BYTES} bytes, 11 days of speech; split the text")
        if piece:
            yield piece


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
