"""Words of a text, to which an aligner gives times, by the rules of the official package."""

import logging
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import regex

from voxport.bundle.errors import UsageError

log = logging.getLogger(__name__)
_OTHERS = regex.compile(r"[^\p{L}\p{N}']")
# the blocks of the official package, which are not all that Unicode has
_HAN = regex.compile(r"([\u4e00-\u9fff\u3400-\u4dbf\U00020000-\U0002a6df\U0002a700-\U0002ceaf\uf900-\ufaff])")
KOREAN_WORDS = "inference/assets/korean_dict_jieba.dict"  # in qwen-asr; the first field of a line


def words_of(text: str, language: str) -> list[str]:
    """Words of letters, numbers and apostrophes. `language` is a code; an empty one has the general rule.

    Japanese needs the package nagisa, and Korean soynlp and the list of words of the package qwen-asr.
    Without them, both are divided by the general rule: at white space, and around each Han character.
    """
    if language == "ja" and _has("nagisa", "Japanese"):
        return list(_cleaned(_nagisa().tagging(text).words))
    if language == "ko" and _has("soynlp", "Korean") and _has("qwen_asr", "Korean"):
        return list(_cleaned(_korean().tokenize(text)))
    return [part for word in _cleaned(text.split()) for part in _HAN.split(word) if part]


def as_written(words: Iterable[str], text: str) -> list[str]:
    """Each word as it stands in the text, with the marks around it.

    Words may be normalized: nagisa makes `12` of `１２`. Their letters are looked for in normalized text, and
    the rare one that is not there is skipped.
    """
    given, rest, starts, ends, end = list(words), iter(text), list[int](), list[int](), 0
    plain, places = text, list(range(len(text) + 1))
    if is_normalized := not all(letter in rest for word in given for letter in word):
        plain, places = _normalized(text)
    for word in given:
        found = [end]
        for letter in _normalized(word)[0] if is_normalized else word:
            if (place := plain.find(letter, found[-1])) >= 0:
                found.append(place + 1)
        first = found[1] - 1 if len(found) > 1 else end
        starts.append(places[first])
        end = found[-1]
        ends.append(places[end - 1] + 1 if end else 0)
    edges = [0]
    for end, start in zip(ends, starts[1:], strict=False):
        blank = regex.search(r"\s", text, pos=end, endpos=start)
        edges.append(blank.start() if blank else start)
    parts = zip(given, edges, [*edges[1:], len(text)], strict=True)
    return [text[first:last].strip() or word for word, first, last in parts]


def _normalized(text: str) -> tuple[str, list[int]]:
    """The text in compatibility decomposition without case, and for each letter its place in the text. One
    place more is the end.
    """
    found = [unicodedata.normalize("NFKD", letter).casefold() for letter in text]
    places = [place for place, letters in enumerate(found) for _ in letters]
    return "".join(found), [*places, len(text)]


def _cleaned(words: Iterable[str]) -> Iterator[str]:
    return filter(None, (_OTHERS.sub("", word) for word in words))


@cache
def _has(package: str, language: str) -> bool:
    if find_spec(package):
        return True
    log.warning("%s: words are divided at white space, because %s is not installed", language, package)
    return False


@cache
def _nagisa() -> Any:  # Any: the package has no annotations
    import nagisa

    return nagisa


@cache
def _korean() -> Any:  # Any: the package has no annotations
    from soynlp.tokenizer import LTokenizer

    spec = find_spec("qwen_asr")
    assert spec and spec.origin
    path = Path(spec.origin).parent / KOREAN_WORDS
    if not path.is_file():
        raise UsageError(f"{path}: missing; install qwen-asr 0.0.6")
    lines = path.read_text(encoding="utf-8").splitlines()
    return LTokenizer(scores={line.split()[0]: 1.0 for line in lines if line.strip()})
