"""Word error rate: substituted, missing and additional words over the words of the references."""

import re
from collections.abc import Sequence

import jiwer


def normalised(text: str) -> str:
    """The words of a text in lower case, without punctuation. The texts of the training have no digits."""
    return " ".join(re.findall(r"[a-z']+", text.lower()))


def word_error_rate(expected: Sequence[str], found: Sequence[str]) -> float:
    """Of all texts together; 1.0 is 100 %. Each of `expected` has a word."""
    return float(jiwer.wer(list(map(normalised, expected)), list(map(normalised, found))))
