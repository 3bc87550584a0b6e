"""English sentences from templates and word lists, the same for the same seed.

Two kinds, which never meet: sentences for training, and those that are held out. Training leaves out
`HELD_OUT` words too. Whether a sentence or a word is held out depends on its spelling only.
"""

import random
import re
import zlib
from collections.abc import Iterator

from num2words import num2words

from tools.training.data import words

HELD_OUT_SENTENCES = 50  # one sentence in so many
HELD_OUT_WORDS = 25  # one frequent word in so many
RANDOM_WORDS_SHARE = 0.3  # share of sentences that are frequent words without grammar
SHORTEST, LONGEST = 3, 9  # words of such a sentence

SUBJECTS = [
    "{person}",
    "the {relative}",
    "my {relative}",
    "the {animal}",
    "our {relative}",
    "a {adjective} {relative}",
]
OBJECTS = [
    "the {thing}",
    "a {adjective} {thing}",
    "{number} {colour} {things}",
    "the {colour} {thing}",
    "my {thing}",
    "your {adjective} {thing}",
    "the {animal}",
    "{few} {things}",
    "this {thing}",
    "their {thing}",
]
WHERE = ["in the {place}", "near the {place}", "behind the {thing}", "on the {thing}", "under the {thing}"]
WHEN = ["on {day}", "in {month}", "at {time}", "every {day}", "at {time} on {day}", "{adverb}", "last {day}"]
TEMPLATES = [
    "{subject} {past} {object}.",
    "{subject} {past} {object} {where}.",
    "{subject} {past} {object} {when}.",
    "{subject} is {doing} {object}.",
    "{subject} is {acting} {where}.",
    "{subject} {acted} {where} {when}.",
    "{subject} will {verb} {object} {when}.",
    "{subject} will {act} {where}.",
    "did {subject} {verb} {object}?",
    "does {subject} {act} {where}?",
    "can you {verb} {object}?",
    "please {verb} {object} {where}.",
    "do not {verb} {object}.",
    "{number} {colour} {things} are standing {where}.",
    "there are {number} {things} {where}.",
    "there is a {adjective} {thing} {where}.",
    "the {thing} is {adjective} and {colour}.",
    "it is {time} in {city}.",
    "the train to {city} leaves at {time}.",
    "the meeting is on {day}, the {ordinal} of {month}.",
    "{person} was born on the {ordinal} of {month}.",
    "{person} lives in {city}.",
    "it took {number} {units}.",
    "the {thing} costs {large} {money}.",
    "{city} is {large} {distance} from {city2}.",
    "it is {sky} in {city} today.",
    "tomorrow will be {sky} and {sky2}.",
    "the {weather} was {adjective} on {day}.",
    "{person} and {person2} {acted} {when}.",
    "where is {object}?",
    "who {past} {object}?",
    "when will {subject} {verb} {object}?",
    "why is the {animal} {acting}?",
    "{subject} {past} {object}, and {subject2} {past2} {object2}.",
    "if it is {sky}, {subject} will {act} {where}.",
    "my number is {digits}.",
    "call me at {time}.",
    "we need {number} {units}.",
    "in {year} {subject} {past} {object}.",
    "the temperature is {number} degrees.",
    "{large} people live in {city}.",
    "{subject} is {number} years old.",
    "I {past} {object} {where}.",
    "you {past} {object} {when}.",
    "they are {acting} {where}.",
    "we {acted} {when}.",
    "she said that {subject} {past} {object}.",
    "he thinks that the {thing} is {adjective}.",
]
SLOT = re.compile(r"\{([a-z]+)\d?\}")


def _is_held_out(text: str, one_in: int) -> bool:
    return zlib.crc32(text.encode()) % one_in == 0


def _plural(noun: str) -> str:
    if noun in ("leaf", "loaf", "knife", "shelf"):
        return re.sub("fe?$", "ves", noun)
    if noun.endswith(("ch", "sh", "s", "x", "potato", "tomato")):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def spell(number: int, to: str = "cardinal") -> str:
    """`105` -> `one hundred and five`: without hyphens and commas, so that each word is a word."""
    spelled: str = num2words(number, to=to)
    return spelled.replace("-", " ").replace(",", "")


def _time(rng: random.Random) -> str:
    hour, minute = spell(rng.randint(1, 12)), rng.choice((0, 5, 10, 15, 20, 25, 30, 40, 45, 50))
    if not minute:
        return f"{hour} o'clock"
    return rng.choice(
        (f"{hour} {spell(minute)}", f"half past {hour}", f"quarter to {hour}", f"ten past {hour}")
    )


_SLOTS = {
    "subject": SUBJECTS,
    "object": OBJECTS,
    "where": WHERE,
    "when": WHEN,
    "person": words.PEOPLE,
    "city": words.CITIES,
    "day": words.DAYS,
    "month": words.MONTHS,
    "colour": words.COLOURS,
    "relative": words.RELATIVES,
    "thing": words.THINGS,
    "animal": words.ANIMALS,
    "place": words.PLACES,
    "adjective": words.ADJECTIVES,
    "adverb": words.ADVERBS,
    "sky": words.SKY,
    "weather": words.SUBJECTS,
    "units": words.UNITS,
    "few": ["many", "some", "several", "no", "all"],
    "money": ["pounds", "dollars", "euros"],
    "distance": ["miles", "kilometres"],
    "verb": [base for base, _, _ in words.VERBS],
    "past": [past for _, past, _ in words.VERBS],
    "doing": [doing for _, _, doing in words.VERBS],
    "act": [base for base, _, _ in words.ACTIONS],
    "acted": [past for _, past, _ in words.ACTIONS],
    "acting": [acting for _, _, acting in words.ACTIONS],
}


def _words_in_templates() -> set[str]:
    """In lower case, with the plurals and the words of numbers and times."""
    texts = [*TEMPLATES, *(text for texts in _SLOTS.values() for text in texts), *map(_plural, words.THINGS)]
    texts += [spell(number, to) for number in range(101) for to in ("cardinal", "ordinal")]
    texts += ["thousand", "o'clock half past quarter to ten"]
    return {word.lower() for text in texts for word in re.findall(r"[A-Za-z']+", text)}


_IN_TEMPLATES = _words_in_templates()
HELD_OUT = [
    word for word in words.FREQUENT if word not in _IN_TEMPLATES and _is_held_out(word, HELD_OUT_WORDS)
]
TRAINED = [word for word in words.FREQUENT if word not in set(HELD_OUT)]


def _fill(slot: str, rng: random.Random) -> str:
    match slot:
        case "number":
            return spell(rng.choice((rng.randint(2, 20), rng.randint(2, 99))))
        case "large":
            return spell(
                rng.choice((rng.randint(100, 999), 100 * rng.randint(10, 99), 1000 * rng.randint(2, 900)))
            )
        case "ordinal":
            return spell(rng.randint(1, 31), "ordinal")
        case "year":
            return spell(rng.randint(1800, 2040), "year")
        case "digits":
            return " ".join(spell(rng.randint(0, 9)) for _ in range(rng.randint(3, 7)))
        case "time":
            return _time(rng)
        case "things":
            return _plural(rng.choice(words.THINGS))
    return rng.choice(_SLOTS[slot])


def _expand(text: str, rng: random.Random) -> str:
    while SLOT.search(text):
        text = SLOT.sub(lambda found: _fill(found[1], rng), text)
    text = re.sub(r"\b([Aa]) (?=[aeio])", r"\1n ", text)
    return text[0].upper() + text[1:]


def _random_words(vocabulary: list[str], rng: random.Random) -> str:
    chosen = " ".join(rng.choice(vocabulary) for _ in range(rng.randint(SHORTEST, LONGEST)))
    return chosen[0].upper() + chosen[1:] + "."


def training_sentences(seed: int, random_words: float = RANDOM_WORDS_SHARE) -> Iterator[str]:
    """Sentences without end, none of them held out."""
    rng = random.Random(f"training:{seed}")
    while True:
        has_random_words = rng.random() < random_words
        text = _random_words(TRAINED, rng) if has_random_words else _expand(rng.choice(TEMPLATES), rng)
        if not _is_held_out(text, HELD_OUT_SENTENCES):
            yield text


def held_out_sentences(seed: int = 0) -> Iterator[str]:
    """Sentences of the templates that no training seed yields."""
    rng = random.Random(f"held out:{seed}")
    while True:
        text = _expand(rng.choice(TEMPLATES), rng)
        if _is_held_out(text, HELD_OUT_SENTENCES):
            yield text
