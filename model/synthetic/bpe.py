"""`vocab.json` and `merges.txt` of a byte-level BPE with a made-up vocabulary, for synthetic checkpoints."""

from itertools import pairwise

from tokenizers.pre_tokenizers import ByteLevel

from model.synthetic.tokenizer import OTHER_WORDS, WORDS


def byte_level_bpe(words: str = f"{WORDS} {OTHER_WORDS}") -> tuple[dict[str, int], str]:
    """Ids of tokens, and the text of merges.txt. Every prefix of a blank and a word is a token."""
    tokens = dict.fromkeys(sorted(ByteLevel.alphabet()))
    merges: dict[tuple[str, str], None] = {}
    encode = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    for word in words.split():
        ((letters, _),) = encode(f" {word}")
        for start, end in pairwise(range(1, len(letters) + 1)):
            merges[letters[:start], letters[start:end]] = None
            tokens[letters[:end]] = None
    lines = ["#version: 0.2", *map(" ".join, merges)]
    return {token: index for index, token in enumerate(tokens)}, "\n".join(lines) + "\n"
