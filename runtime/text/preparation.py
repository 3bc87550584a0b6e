"""From text as people type it to the parts that a model speaks one after another."""

from collections.abc import Iterable, Iterator
from itertools import filterfalse

from bundle.errors import UsageError
from runtime.text.blocks import plain_lines
from runtime.text.cleanup import check_text, clean_sentence, is_blank
from runtime.text.splitting import Fits, parts, sentences


def prepare(text: str | Iterable[str], language: str, fits: Fits, verbatim: bool = False) -> Iterator[str]:
    """Parts of the text, each as soon as its last sentence is there.

    `text` may arrive in pieces, whose division does not change the parts. `language` is an ISO 639 code.
    `fits` tells whether a part can be spoken at once. Sentences are cleaned up unless `verbatim`. Raises
    UsageError on NUL, on a lone surrogate, and at the end of a text that had nothing to speak.
    """
    pieces: Iterable[str] = map(check_text, [text] if isinstance(text, str) else text)
    if verbatim:
        found: Iterable[str] = filterfalse(is_blank, sentences(pieces, language))
    else:
        cleaned = (
            clean_sentence(sentence, language) for sentence in sentences(plain_lines(pieces), language)
        )
        found = filter(None, cleaned)
    is_empty = True
    for part in parts(found, fits):
        is_empty = False
        yield part
    if is_empty:
        advice = "give at least one word" if verbatim else "give at least one word, or speak it verbatim"
        raise UsageError(f"the text has nothing to speak; {advice}", field="text")
