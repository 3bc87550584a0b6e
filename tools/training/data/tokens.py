"""A small Tekken vocabulary: all bytes, and the merges of the training text."""

import json
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path

import regex
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers.convert_slow_tokenizer import bytes_to_unicode

from tools.training.data.sentences import training_sentences
from voxport.bundle.json_types import Json
from voxport.model.synthetic.tokenizer import PATTERN, SPECIALS, document

BYTES = [
    bytes([byte]) for byte in range(256)
]  # the tokens of speech: a word it never met is spelled, as all are
SAMPLED = 40_000  # sentences whose merges are counted
MIN_OCCURRENCES = 4  # of a merge
Merges = dict[bytes, int]  # rank of a token, which is the order of its merge


def learn_tokens(texts: Sequence[str], count: int) -> list[bytes]:
    """Byte-pair encoding: the 256 bytes, then merged tokens in the order of their merges; at most `count`."""
    alphabet: dict[int, str] = bytes_to_unicode()  # type: ignore[no-untyped-call]
    learner = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    learner.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    trainer = trainers.BpeTrainer(
        vocab_size=count,
        min_frequency=MIN_OCCURRENCES,
        initial_alphabet=list(alphabet.values()),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    to_byte = {character: byte for byte, character in alphabet.items()}
    spelled = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    return BYTES + [bytes(map(to_byte.__getitem__, token)) for token, _ in spelled if len(token) > 1]


def training_tokens(vocab_size: int) -> list[bytes]:
    """The tokens of recognition. Words in a sentence begin with a blank, and the first does not."""
    texts = list(islice(training_sentences(0), SAMPLED))
    return learn_tokens([*texts, *(f" {text}" for text in texts)], vocab_size - SPECIALS)


class Encoder:
    """Encodes text as Tekken does."""

    def __init__(self, tokens: Sequence[bytes]):
        self._ranks: Merges = {token: rank for rank, token in enumerate(tokens)}
        self._tokens = list(tokens)
        self._cached = lru_cache(maxsize=1 << 16)(self._encode_piece)

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return [token for piece in regex.findall(PATTERN, text) for token in self._cached(piece.encode())]

    def lengths(self, ids: Sequence[int]) -> list[int]:
        """The length of each token of a text in bytes."""
        return [len(self._tokens[token - SPECIALS]) for token in ids]

    def _encode_piece(self, content: bytes) -> tuple[int, ...]:
        parts = [bytes([byte]) for byte in content]
        while True:
            ranked = [
                (self._ranks[left + right], index)
                for index, (left, right) in enumerate(pairwise(parts))
                if left + right in self._ranks
            ]
            if not ranked:
                return tuple(self._ranks[part] + SPECIALS for part in parts)
            _, index = min(ranked)
            parts[index : index + 2] = [parts[index] + parts[index + 1]]


def load_tokens(path: Path, vocab_size: int) -> list[bytes]:
    """The tokens, learned on first use and kept in `path`."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([token.hex() for token in training_tokens(vocab_size)]))
    return [bytes.fromhex(token) for token in json.loads(path.read_text())]


def tekken_document(tokens: Sequence[bytes], specials: dict[int, str], audio: Json) -> Json:
    """The content of tekken.json. Fillers complete the vocabulary if the text has too few merges."""
    return document(list(tokens), SPECIALS + len(tokens), specials, audio)
