"""Times of words: those that run backwards are moved between their neighbours, as officially."""

from collections.abc import Sequence

FEW = 2  # so many wrong times in a row take the time of a neighbour; more are spread between both


def mended(times: Sequence[int]) -> list[int]:
    """Milliseconds -> as many, in which no time is before the one in front of it.

    The longest subsequence that does not fall is right, and stays.
    """
    kept, found = _longest_rising(times), list(times)
    is_right = [index in kept for index in range(len(times))]
    start = 0
    while start < len(times):
        if is_right[start]:
            start += 1
            continue
        end = next((index for index in range(start, len(times)) if is_right[index]), len(times))
        left, right = start - 1, end if end < len(times) else None
        for index in range(start, end):
            found[index] = _between(found, index, left if left >= 0 else None, right, end - start)
        start = end
    return found


def _between(times: Sequence[int], index: int, left: int | None, right: int | None, count: int) -> int:
    """The time of place `index`, in a run of `count` wrong times between two places that are right."""
    if left is None or right is None:
        known = right if left is None else left
        assert known is not None  # as the longest subsequence has one place or more
        return times[known]
    if count <= FEW:
        return times[left] if index - left <= right - index else times[right]
    return int(times[left] + (times[right] - times[left]) * ((index - left) / (right - left)))


def _longest_rising(times: Sequence[int]) -> set[int]:
    """Places of the longest subsequence that does not fall. The first one wins."""
    lengths, before = [1] * len(times), [-1] * len(times)
    for index, time in enumerate(times):
        for other in range(index):
            if times[other] <= time and lengths[other] + 1 > lengths[index]:
                lengths[index], before[index] = lengths[other] + 1, other
    place, kept = max(range(len(times)), key=lengths.__getitem__, default=-1), set[int]()
    while place >= 0:
        kept.add(place)
        place = before[place]
    return kept
