"""Names of languages, and their codes of ISO 639."""

import re

CODE = re.compile("[a-z]{2,3}")
NAMES = {
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


def language_code(language: str) -> str | None:
    """Returns an ISO 639 code as it is, of `en-US` the part before the region, and the code of an English
    name, all in any case; None for anything else.
    """
    name = str(language).lower()
    found = NAMES.get(name, name.replace("_", "-").partition("-")[0])
    return found if CODE.fullmatch(found) else None
