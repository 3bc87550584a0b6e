"""Reads text from a file or a pipe, and checks that there is something to speak before work begins."""

import codecs
from collections.abc import Iterable, Iterator
from io import BufferedIOBase
from itertools import chain

from voxport.bundle.errors import UsageError
from voxport.runtime.text.cleanup import is_speakable
from voxport.runtime.text.preparation import check_speakable

BLOCK_BYTES = 65536
MAX_BYTES = 2**24


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
