"""Keeps sound that grows, and divides it where it is quiet, as the official package does."""

import numpy as np

SEARCH_S, WINDOW_S, SHORTEST_S = 5.0, 0.1, 0.5


class Samples:
    """float32 samples [n] that grow by blocks. Their memory doubles when it is full, so each is copied twice
    on average, however many blocks come.
    """

    def __init__(self, samples: np.ndarray | None = None):
        self._memory = np.zeros(0, np.float32) if samples is None else samples.copy()
        self._count = len(self._memory)

    def __len__(self) -> int:
        return self._count

    @property
    def all(self) -> np.ndarray:
        """A view, which stays as it is when samples are added."""
        return self._memory[: self._count]

    def add(self, samples: np.ndarray) -> None:
        end = self._count + len(samples)
        if end > len(self._memory):
            self._memory = np.concatenate((self.all, np.zeros(max(len(samples), self._count), np.float32)))
        self._memory[self._count : end] = samples
        self._count = end


def split(
    samples: np.ndarray, limit_s: float, rate: int, search_s: float = SEARCH_S, is_rest: bool = False
) -> list[np.ndarray]:
    """samples float32 [n] -> pieces, each cut at the quietest place near the limit.

    A piece may be longer than the limit by `search_s`. Pieces of a divided recording that are shorter than
    half a second end in zeros. `is_rest`: pieces of the same recording were taken before.
    """
    limit, search, window, start = int(limit_s * rate), int(search_s * rate), int(WINDOW_S * rate), 0
    if len(samples) <= limit and not is_rest:
        return [samples]
    pieces = list[np.ndarray]()
    while len(samples) - start > limit:
        first, last = max(start, start + limit - search), min(len(samples), start + limit + search)
        end = max(start + 1, first + _quietest(np.abs(samples[first:last]), window))
        pieces.append(samples[start:end])
        start = end
    shortest, rest = int(SHORTEST_S * rate), samples[start:]
    return [np.pad(each, (0, max(0, shortest - len(each)))) for each in (*pieces, rest) if len(each)]


def _quietest(levels: np.ndarray, window: int) -> int:
    """The place of the smallest level in the window with the smallest sum; the middle of few levels."""
    if len(levels) <= window:
        return len(levels) // 2
    sums = np.convolve(levels, np.ones(window, np.float32), "valid")
    first = int(sums.argmin())
    return first + int(levels[first : first + window].argmin())
