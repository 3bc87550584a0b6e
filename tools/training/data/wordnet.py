"""The example sentences of WordNet, made into sentences (Debian: wordnet-base).

Most examples are parts of sentences without a capital and without a full stop. A clause gets both. A phrase
of a verb is a request or follows a subject, and a phrase of a noun is completed by one of `AROUND_NOUNS`.
"""

import re
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

FOLDER = Path("/usr/share/wordnet")
PARTS_OF_SPEECH = ("verb", "noun", "adv", "adj")
LONGEST = 24  # words
_SUBJECTS = (
    "i you he she it we they this that these those there who what when where why how if while as after "
    "before my your his her its our their the a an some many most all no every each both people nobody "
    "everyone everybody somebody something nothing let please do don't never in on at by for with from "
    "to during"
)
_FINITE = (
    "is was were am are be been has had have do does did can could will would shall should may might "
    "must cannot can't won't don't isn't wasn't couldn't wouldn't didn't doesn't i'm it's that's he's "
    "she's they're we're i'll we'll went got came took made said saw knew left let's"
)
SUBJECTS, FINITE = frozenset(_SUBJECTS.split()), frozenset(_FINITE.split())
AROUND_NOUNS = (
    "It was {}.",
    "They spoke about {}.",
    "I have often thought of {}.",
    "She described {}.",
    "What do you know about {}?",
    "There is more to say about {}.",
    "He showed us {}.",
    "This is about {}.",
    "We had never seen {}.",
    "Nobody mentioned {}.",
    "Can you tell me about {}?",
    "Everybody remembers {}.",
    "The story begins with {}.",
    "It reminded her of {}.",
    "You can read about {}.",
    "Was it {}?",
)
# Words that nobody wants to hear from an example
REFUSED = re.compile(
    r"\b(nigg\w*|rap(e|ed|es|ing|ist)|whor\w*|slut\w*|bitch\w*|bastard\w*|fuck\w*|shit\w*|cunt\w*|cock|ass|"
    r"tits?|sex\w*|penis|vagina\w*|prostitut\w*|porn\w*|naked|nude|jews?|jewish|negro\w*|blacks|queer\w*|"
    r"fagg?\w*|homosexual\w*|kill\w*|murder\w*|suicid\w*|tortur\w*|hitler|nazi\w*|slaves?|slaughter\w*|"
    r"stab\w*|orgasm\w*|masturbat\w*|copulat\w*|incest\w*|semen|urin\w*|feces|breasts?|lynch\w*|massacr\w*|"
    r"execut(ed|ion)|corpses?)\b",
    re.IGNORECASE,
)
PLAIN = re.compile(r"[A-Za-z0-9 ,.'!?;:$%-]+")


def sentences() -> Iterator[str]:
    """Each once, in the order of the files. Raises FileNotFoundError if the package is not installed."""
    seen = set()
    for part in PARTS_OF_SPEECH:
        for example in _examples(part):
            text = sentence_of(example, part)
            if text and text not in seen:
                seen.add(text)
                yield text


def sentence_of(example: str, part: str) -> str | None:
    """A sentence, or None if the example is not plain English text of a usable length."""
    text = re.sub(r"\s*--+\s*", " - ", example.replace("`", "'")).strip(" ,;:'")
    words = text.split()
    is_plain = PLAIN.fullmatch(text) and not re.search(r" '|' |\.\.", text)  # no quotes, no omissions
    if not 2 <= len(words) <= LONGEST or not is_plain or REFUSED.search(text):
        return None
    first, lower = words[0].lower(), [word.strip(",.;:!?").lower() for word in words]
    if text[-1] in ".!?" or words[0][0].isupper() or _is_clause(lower):
        completed = text
    elif part == "verb" and first in _lemmas("verb"):
        completed = text  # a request
    elif first in _past_forms() or (len(lower) > 1 and lower[1] in _past_forms() and first.endswith("ly")):
        completed = f"{_drawn(text, ('He', 'She', 'They', 'We'))} {text}"
    elif lower[-1] in _lemmas("noun") or lower[-1].removesuffix("s") in _lemmas("noun"):
        completed = _drawn(text, AROUND_NOUNS).format(text)
    else:
        completed = f"It was {text}"
    completed = completed[0].upper() + completed[1:]
    completed = re.sub(r"\bi\b", "I", completed)
    return completed if completed[-1] in ".!?" else f"{completed}."


def _is_clause(lower: list[str]) -> bool:
    finite = FINITE | _past_forms()
    has_verb = any(
        word in finite or word.endswith("ed") or (word.endswith("s") and word[:-1] in _lemmas("verb"))
        for word in lower[1:]
    )
    return has_verb and (lower[0] in SUBJECTS or lower[0] not in _lemmas("verb") | _past_forms())


def _drawn(text: str, choices: tuple[str, ...]) -> str:
    return choices[zlib.crc32(text.encode()) % len(choices)]


def _examples(part: str) -> Iterator[str]:
    for line in (FOLDER / f"data.{part}").read_text("latin-1").splitlines():
        if not line.startswith("  "):  # the licence
            yield from re.findall(r'"([^"]+)"', line.partition("|")[2])


@cache
def _lemmas(part: str) -> frozenset[str]:
    lines = (FOLDER / f"index.{part}").read_text("latin-1").splitlines()
    return frozenset(line.split()[0] for line in lines if not line.startswith("  "))


@cache
def _past_forms() -> frozenset[str]:
    """Irregular forms that do not end in -ing."""
    lines = (FOLDER / "verb.exc").read_text("latin-1").splitlines()
    return frozenset(word for word in (line.split()[0] for line in lines) if not word.endswith(("ing", "s")))
