"""Word error rate, with jiwer. Digits are read in English."""

import unicodedata
from collections import defaultdict
from collections.abc import Sequence

import jiwer
import numpy as np
import regex

from voxport.bundle.errors import UsageError
from voxport.runtime.text.numbers import spell_amounts, spell_numbers

_NO_WORD = regex.compile(r"[^\p{L}\p{M}\p{N}' ]+")


def normalised(text: str) -> str:
    """Lower case, without punctuation, amounts and numbers in words, one space between words."""
    text = unicodedata.normalize("NFKC", text).replace("\u2019", "'")
    text = spell_numbers(spell_amounts(text, "en"))
    letters = _NO_WORD.sub(" ", text.lower())
    return " ".join(word for part in letters.split() if (word := part.strip("'")))


def word_error_rate(expected: Sequence[str], found: Sequence[str]) -> float:
    """Substituted, missing and additional words over the words of `expected`, of all texts together.

    1.0 is 100 %. A text without a word does not count. Raises UsageError if no expected text has a word.
    """
    pairs = [(normalised(a), normalised(b)) for a, b in zip(expected, found, strict=True)]
    spoken = [(a, b) for a, b in pairs if a]
    if not spoken:
        raise UsageError("evaluate: no sentence has a word", field="sentences")
    return float(jiwer.wer([a for a, _ in spoken], [b for _, b in spoken]))


def standard_error(expected: Sequence[str], found: Sequence[str], other: Sequence[str]) -> float | None:
    """Standard error of the difference between the word error rates of `found` and `other`.

    The difference is a sum over n texts, divided by the number of words: its error is √n times the standard
    deviation of a text's share. Readings of one text belong together. None if fewer than two texts have
    words.
    """
    differences, words = defaultdict[str, int](int), 0
    for text, a, b in zip(map(normalised, expected), found, other, strict=True):
        if text:
            differences[text] += _word_errors(text, a) - _word_errors(text, b)
            words += len(text.split())
    if len(differences) < 2:
        return None
    return float(np.std(list(differences.values()), ddof=1) * len(differences) ** 0.5 / words)


def _word_errors(text: str, found: str) -> int:
    counted = jiwer.process_words(text, normalised(found))
    return int(counted.substitutions + counted.deletions + counted.insertions)
