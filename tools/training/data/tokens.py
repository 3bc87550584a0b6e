"""A small Tekken vocabulary: all bytes, and the merges of the training text."""

import json
import random
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice, pairwise
from pathlib import Path

import regex

from tools.training.data.sentences import training_sentences
from voxport.bundle.json_types import Json
from voxport.model.synthetic.tokenizer import PATTERN, SPECIALS, document

VOCAB_SIZE = 2048  # with the specials
SAMPLED = 20_000  # sentences whose merges are counted
MIN_OCCURRENCES = 4  # occurrences of a merge
Merges = dict[bytes, int]  # rank of a token, which is the order of its merge


def learn_tokens(texts: Sequence[str], count: int) -> list[bytes]:
    """Byte-pair encoding: the 256 bytes, then merged tokens, the most frequent pair first; at most
    `count`.
    """
    pieces = Counter(piece for text in texts for piece in regex.findall(PATTERN, text))
    spelled = {piece: [bytes([byte]) for byte in piece.encode()] for piece in pieces}
    tokens = [bytes([byte]) for byte in range(256)]
    while len(tokens) < count:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for piece, parts in spelled.items():
            for pair in pairwise(parts):
                pairs[pair] += pieces[piece]
        if not pairs:
            break
        (left, right), found = max(pairs.items(), key=lambda item: (item[1], item[0]))
        if found < MIN_OCCURRENCES:
            break
        tokens.append(left + right)
        for piece, parts in spelled.items():
            if left in parts:
                spelled[piece] = _merged(parts, left, right)
    return tokens


def _merged(parts: list[bytes], left: bytes, right: bytes) -> list[bytes]:
    out: list[bytes] = []
    for part in parts:
        if out and out[-1] == left and part == right:
            out[-1] = left + right
        else:
            out.append(part)
    return out


def training_tokens(vocab_size: int = VOCAB_SIZE) -> list[bytes]:
    """The tokens of the recipe. Words in a sentence begin with a blank, and the first does not."""
    texts = list(islice(training_sentences(0), SAMPLED))
    return learn_tokens([*texts, *(f" {text}" for text in texts)], vocab_size - SPECIALS)


class Encoder:
    """Encodes text as Tekken does, and can leave out merges at random."""

    def __init__(self, tokens: Sequence[bytes]):
        self._ranks: Merges = {token: rank for rank, token in enumerate(tokens)}
        self._tokens = list(tokens)
        self._cached = lru_cache(maxsize=1 << 16)(self._encode_piece)

    def encode(self, text: str, dropped: float = 0.0, rng: random.Random | None = None) -> list[int]:
        """Ids of a text. Each merge is left out with the probability `dropped`, so that pieces of words
        occur.
        """
        ids: list[int] = []
        for piece in regex.findall(PATTERN, text):
            content = piece.encode()
            ids += self._encode_piece(content, dropped, rng) if dropped and rng else self._cached(content)
        return ids

    def lengths(self, ids: Sequence[int]) -> list[int]:
        """The length of each token of a text in bytes."""
        return [len(self._tokens[token - SPECIALS]) for token in ids]

    def _encode_piece(
        self, content: bytes, dropped: float = 0.0, rng: random.Random | None = None
    ) -> tuple[int, ...]:
        parts = [bytes([byte]) for byte in content]
        while True:
            ranked = [
                (self._ranks[left + right], index)
                for index, (left, right) in enumerate(pairwise(parts))
                if left + right in self._ranks and not (rng and rng.random() < dropped)
            ]
            if not ranked:
                return tuple(self._ranks[part] + SPECIALS for part in parts)
            _, index = min(ranked)
            parts[index : index + 2] = [parts[index] + parts[index + 1]]


def load_tokens(path: Path) -> list[bytes]:
    """The tokens, learned on first use and kept in `path`."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([token.hex() for token in training_tokens()]))
    return [bytes.fromhex(token) for token in json.loads(path.read_text())]


def tekken_document(tokens: Sequence[bytes], specials: dict[int, str], audio: Json) -> Json:
    """The content of tekken.json. Fillers complete the vocabulary if the text has too few merges."""
    return document(list(tokens), SPECIALS + len(tokens), specials, audio)
