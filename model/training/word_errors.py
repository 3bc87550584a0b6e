"""Word error rate: substituted, missing and additional words over the words of the references."""

import re
from collections.abc import Sequence


def normalised(text: str) -> list[str]:
    """The words of a text in lower case, without punctuation."""
    return re.findall(r"[a-z']+", text.lower())


def edit_distance(expected: Sequence[str], found: Sequence[str]) -> int:
    """The fewest substitutions, deletions and insertions that turn `expected` into `found`."""
    row = list(range(len(found) + 1))
    for first, word in enumerate(expected, 1):
        diagonal, row[0] = row[0], first
        for second, other in enumerate(found, 1):
            diagonal, row[second] = (
                row[second],
                min(row[second] + 1, row[second - 1] + 1, diagonal + (word != other)),
            )
    return row[-1]


def word_error_rate(expected: Sequence[str], found: Sequence[str]) -> float:
    """Of all texts together; 1.0 is 100 %."""
    words = [normalised(text) for text in expected]
    errors = sum(edit_distance(a, normalised(b)) for a, b in zip(words, found, strict=True))
    return errors / max(1, sum(map(len, words)))
