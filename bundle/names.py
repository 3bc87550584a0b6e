"""Names that a person types: of targets, recipes, families, voices and languages."""

import re
from collections.abc import Iterable, Mapping

CODE = re.compile("[a-z]{2,3}")
NAMES = {  # languages and their codes
    "arabic": "ar",
    "chinese": "zh",
    "dutch": "nl",
    "english": "en",
    "french": "fr",
    "german": "de",
    "greek": "el",
    "hebrew": "he",
    "hindi": "hi",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "persian": "fa",
    "polish": "pl",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
    "thai": "th",
    "turkish": "tr",
    "ukrainian": "uk",
    "vietnamese": "vi",
}


def find_name(name: str, names: Iterable[str]) -> str:
    """The one of `names` that equals `name`, or the only one that does so in another case; else `name`."""
    known = list(names)
    alike = [each for each in known if each.casefold() == name.casefold()]
    return alike[0] if name not in known and len(alike) == 1 else name


def did_you_mean(name: str, names: Iterable[str], nearest: Mapping[str, str] = {}) -> str:
    """The end of an error's message: what is the nearest to `name`, a name in other programs, or the one of
    `names` that is close to it; empty if there is none. The keys of `nearest` are patterns.
    """
    from difflib import get_close_matches  # only for errors

    for pattern, found in nearest.items():
        if re.fullmatch(pattern, name.strip(), re.IGNORECASE):
            return f"; the nearest is {found}"
    return "".join(f"; did you mean {close}?" for close in get_close_matches(name.casefold(), list(names), 1))


def language_code(language: str) -> str | None:
    """Returns an ISO 639 code as it is, of `en-US` the part before the region, and the code of an English
    name, all in any case; None for anything else.
    """
    name = str(language).lower()
    found = NAMES.get(name, name.replace("_", "-").partition("-")[0])
    return found if CODE.fullmatch(found) else None
