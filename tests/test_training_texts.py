"""The texts of the training: sentences from WordNet, what is held out, and which words a sound has."""

import os
from collections import Counter
from itertools import islice

import pytest

from tools.training.data import sentences
from tools.training.data.matching import match_words, words_in
from tools.training.data.wordnet import FOLDER, sentence_of

needs_wordnet = pytest.mark.skipif(  # not in CI, where .ci/run installs it
    not FOLDER.exists() and "CI" not in os.environ,
    reason="wordnet-base is not installed; only training needs it",
)


@needs_wordnet
@pytest.mark.parametrize(
    ("example", "part", "expected"),
    [
        ("he ran to the store", "verb", "He ran to the store."),
        ("i wonder -- is it late?", "verb", "I wonder - is it late?"),
        ("answer the phone", "verb", "Answer the phone."),
        ("felt ashamed of his torn coat", "adj", "We felt ashamed of his torn coat."),
        ("a grey squally morning", "adj", "He showed us a grey squally morning."),
        ("blind to a lover's faults", "adj", "There is more to say about blind to a lover's faults."),
        ("one", "noun", None),
        ("the `second' fiddle in it", "noun", None),
        ("they murdered him", "verb", None),
    ],
)
def test_an_example_of_wordnet_becomes_a_sentence(example: str, part: str, expected: str | None) -> None:
    assert sentence_of(example, part) == expected


@needs_wordnet
def test_training_sees_frequent_words_often_and_nothing_that_is_held_out() -> None:
    texts = sentences.all_trained()
    assert len(texts) > 30_000
    found = Counter(word for text in texts for word in set(sentences.words_of(text)))
    assert not [word for word in sentences.frequent_words() if found[word] < sentences.OCCURRENCES]
    assert not any(map(sentences.is_held_out_word, found))
    tested = [sentences.words_of(line) for line in sentences.TEST_SET.read_text().splitlines()]
    lines = {" ".join(sentences.words_of(text)) for text in texts}
    assert len(tested) == 100 and not lines & {" ".join(words) for words in tested}
    first, again, other = (list(islice(sentences.training_sentences(seed), 50)) for seed in (0, 0, 1))
    assert first == again != other


def test_words_are_matched_with_the_groups_that_speak_them() -> None:
    assert words_in("əvðə stɹˈiːt, nˈaʊ.") == [(0, 4), (5, 12), (14, 18)]
    assert match_words([3, 4], [9, 1]) == [0, 1], "equal numbers"
    assert match_words([2, 2, 6], [4, 7]) == [0, 0, 1], "espeak-ng joins `of the`"
    assert match_words([2, 12, 3], [2, 5, 7, 3]) == [0, 2, 3], "a number is spoken as two words"
    assert match_words([1], []) is None
