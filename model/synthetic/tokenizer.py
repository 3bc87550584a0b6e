"""Tokenizers with made-up vocabularies, in the published forms, for synthetic checkpoints."""

import base64
import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from tokenizers.pre_tokenizers import ByteLevel

from voxport.bundle.json_types import Json

SPECIALS = 1000  # ids below this are special; the text token of rank r has id r + 1000

# The published splitting pattern: single digits, Unicode classes, a look-ahead for runs of blanks.
PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Ranks 0 … 19, fixed since the first Tekken; a family adds those that it needs. All other ranks are fillers.
FIRST_SPECIALS = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] "
    "[/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> [IMG_BREAK] "
    "[IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)
# Every prefix of these becomes a token, so that merges of two and more bytes occur in ordinary text.
WORDS = (
    "the and that have for not with you this but his from they say her she will one all would there their "
    "what out about who get which when make can like time just him know take people into year "
    "your good some could them see other than then now look only come over "
    "hello model voice speech random weights"
)
OTHER_WORDS = "été où für año não здесь 🙂"


def tekken(vocab_size: int, num_vocab_tokens: int, specials: dict[int, str], audio: Json) -> Json:
    """The content of tekken.json.

    `vocab_size` counts the specials. Entries beyond it are dropped by readers, as with the published file.
    """
    ordered = list(itertools.islice(_byte_strings(), num_vocab_tokens))
    return document(ordered, vocab_size, specials, audio)


def document(tokens: Sequence[bytes], vocab_size: int, specials: dict[int, str], audio: Json) -> Json:
    """The content of tekken.json with the given tokens, the 256 bytes first."""
    named = dict(enumerate(FIRST_SPECIALS.split())) | specials
    return {
        "config": {
            "pattern": PATTERN,
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": vocab_size,
            "default_num_special_tokens": SPECIALS,
            "version": "v7",
        },
        "vocab": [_entry(rank, token) for rank, token in enumerate(tokens)],
        "special_tokens": [
            {"rank": rank, "token_str": named.get(rank, f"<SPECIAL_{rank}>"), "is_control": True}
            for rank in range(max(named) + 1)  # without a gap: mistral_common requires a complete list
        ],
        "audio": audio,
    }


def _entry(rank: int, token: bytes) -> Json:
    try:
        text = token.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    return {"rank": rank, "token_bytes": base64.b64encode(token).decode("ascii"), "token_str": text}


def _byte_strings() -> Iterator[bytes]:
    """Distinct byte strings without end, prefixes first, so that byte-pair merging reaches each."""
    listed: set[bytes] = set()
    for token in itertools.chain((bytes([byte]) for byte in range(256)), _prefixes(), _letters()):
        if token not in listed:
            listed.add(token)
            yield token


def _prefixes() -> Iterator[bytes]:
    for word in f"{WORDS} {OTHER_WORDS}".split():
        encoded = f" {word}".encode()
        for length in range(2, len(encoded) + 1):
            yield encoded[:length]


def _letters() -> Iterator[bytes]:
    """All lower-case strings of one letter, of two, …; each with and without a blank in front."""
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            text = "".join(letters).encode("ascii")
            yield text
            yield b" " + text


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
