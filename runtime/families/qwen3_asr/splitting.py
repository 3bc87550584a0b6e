"""Divides long recordings where they are quiet, as the official package does, and joins their texts."""

from collections.abc import Iterable, Iterator

import numpy as np

SEARCH_S, WINDOW_S, SHORTEST_S = 5.0, 0.1, 0.5
NO_SPACES = ("zh", "yue", "ja", "th")  # languages that are written without spaces


def split(samples: np.ndarray, limit_s: float, rate: int, search_s: float = SEARCH_S) -> list[np.ndarray]:
    """samples float32 [n] -> pieces, each cut at the quietest place near the limit.

    A piece may be longer than the limit by `search_s`. Pieces of a divided recording that are shorter than
    half a second end in zeros.
    """
    limit, search, window, start = int(limit_s * rate), int(search_s * rate), int(WINDOW_S * rate), 0
    if len(samples) <= limit:
        return [samples]
    pieces = list[np.ndarray]()
    while len(samples) - start > limit:
        first, last = max(start, start + limit - search), min(len(samples), start + limit + search)
        end = max(start + 1, first + _quietest(np.abs(samples[first:last]), window))
        pieces.append(samples[start:end])
        start = end
    shortest = int(SHORTEST_S * rate)
    return [np.pad(each, (0, max(0, shortest - len(each)))) for each in (*pieces, samples[start:])]


def _quietest(levels: np.ndarray, window: int) -> int:
    """The place of the smallest level in the window with the smallest sum; the middle of few levels."""
    if len(levels) <= window:
        return len(levels) // 2
    sums = np.convolve(levels, np.ones(window, np.float32), "valid")
    first = int(sums.argmin())
    return first + int(levels[first : first + window].argmin())


def joined(texts: Iterable[str], language: str) -> str:
    """Texts of pieces in a language, by its code. The official package puts nothing between them."""
    return ("" if language in NO_SPACES else " ").join(text for text in texts if text)


def without_repeats(languages: Iterable[str]) -> Iterator[str]:
    """Languages of pieces, without empty ones and without repetitions in a row."""
    previous = ""
    for language in languages:
        if language and language != previous:
            yield language
            previous = language
