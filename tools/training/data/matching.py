"""Which of the groups of phonemes between two blanks speaks which word of a text."""

from collections.abc import Sequence

SPOKEN_PUNCTUATION = " .,!?;:"
LONGEST_RUN = 8  # words of a group, or groups of a word


def words_in(phonemes: str) -> list[tuple[int, int]]:
    """First and last index (exclusive) of each group of phonemes between blanks, without its punctuation."""
    found, start = [], None
    for index, phoneme in enumerate(f"{phonemes} "):
        if phoneme not in SPOKEN_PUNCTUATION and start is None:
            start = index
        elif phoneme in SPOKEN_PUNCTUATION and start is not None:
            found.append((start, index))
            start = None
    return found


def match_words(words: Sequence[int], groups: Sequence[int]) -> list[int] | None:
    """The group in which each word ends, from the numbers of phonemes of the words and of the groups.

    espeak-ng joins words, `of the`, and a number of several words is one word of the text.
    """
    if len(words) == len(groups):
        return list(range(len(words)))
    best: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {(0, 0): (0.0, (0, 0))}
    steps = [(1, count) for count in range(1, LONGEST_RUN)] + [(count, 1) for count in range(2, LONGEST_RUN)]
    for word in range(len(words) + 1):
        for group in range(len(groups) + 1):
            if (word, group) not in best:
                continue
            for taken, used in steps:
                to = (word + taken, group + used)
                if to[0] > len(words) or to[1] > len(groups):
                    continue
                distance = abs(sum(words[word : to[0]]) - sum(groups[group : to[1]])) + 0.1 * (
                    taken * used > 1
                )
                cost = best[word, group][0] + distance
                if to not in best or cost < best[to][0]:
                    best[to] = (cost, (word, group))
    at, ends = (len(words), len(groups)), dict[int, int]()
    if at not in best:
        return None
    while at != (0, 0):
        before = best[at][1]
        ends |= {word: at[1] - 1 for word in range(before[0], at[0])}
        at = before
    return [ends[word] for word in range(len(words))]
