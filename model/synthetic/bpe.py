"""`vocab.json` and `merges.txt` of a byte-level BPE with a made-up vocabulary, for synthetic checkpoints."""

from collections.abc import Mapping
from itertools import pairwise

from tokenizers.pre_tokenizers import ByteLevel

from voxport.model.synthetic.tokenizer import OTHER_WORDS, WORDS


def byte_level_bpe(size: int, fixed: Mapping[str, int]) -> tuple[dict[str, int], str]:
    """Ids of `size` tokens, and the text of merges.txt.

    Every prefix of a blank and a word is a token. So is each word of `fixed`, which has the given id. Tokens
    that no text gives fill the vocabulary.
    """
    tokens = dict.fromkeys(sorted(ByteLevel.alphabet()))
    merges: dict[tuple[str, str], None] = {}
    encode = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    for text in (*(f" {word}" for word in f"{WORDS} {OTHER_WORDS}".split()), *fixed):
        ((letters, _),) = encode(text)
        for start, end in pairwise(range(1, len(letters) + 1)):
            merges[letters[:start], letters[start:end]] = None
            tokens[letters[:end]] = None
    token_of = dict(enumerate(token for token in tokens if token not in fixed))
    token_of |= {index: word for word, index in fixed.items()}
    lines = ["#version: 0.2", *map(" ".join, merges)]
    return {token_of.get(index, f"<{index}>"): index for index in range(size)}, "\n".join(lines) + "\n"
