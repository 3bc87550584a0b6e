"""Word error rate, with jiwer."""

import re
from collections.abc import Sequence

import jiwer

from bundle.errors import UsageError

_NUMBERS = re.compile(r"\d[\d.,:]*")


def normalised(text: str) -> str:
    """Lower case, without punctuation, numbers in words, one space between words."""
    spoken = _NUMBERS.sub(lambda match: f" {_in_words(match.group())} ", text)
    letters = re.sub(r"[^\w' ]+", " ", spoken.lower().replace("\u2019", "'"))
    return " ".join(word for part in letters.split() if (word := part.strip("'_")))


def _in_words(number: str) -> str:
    from num2words import num2words

    plain = number.strip(".,:").replace(",", "")
    try:
        return str(num2words(plain))
    except (ArithmeticError, ValueError):  # a time or a version
        return " ".join(num2words(part) for part in re.findall(r"\d+", number))


def word_error_rate(expected: Sequence[str], found: Sequence[str]) -> float:
    """Substituted, missing and additional words over the words of `expected`, of all texts together.

    1.0 is 100 %. Raises UsageError where no expected text has a word.
    """
    pairs = [(normalised(a), normalised(b)) for a, b in zip(expected, found, strict=True)]
    spoken = [(a, b) for a, b in pairs if a]
    if not spoken:
        raise UsageError("evaluate: no sentence has a word", field="sentences")
    return float(jiwer.wer([a for a, _ in spoken], [b for _, b in spoken]))
