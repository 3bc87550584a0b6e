"""Names and codes of languages."""

import re

from bundle.errors import UsageError

AUTO = "auto"  # the model decides
CODE = re.compile("[a-z]{2,3}")
NAMES = {
    "arabic": "ar",
    "chinese": "zh",
    "dutch": "nl",
    "english": "en",
    "french": "fr",
    "german": "de",
    "hindi": "hi",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "portuguese": "pt",
    "russian": "ru",
    "spanish": "es",
}


def language_code(language: str) -> str | None:
    """Returns an ISO 639 code as it is, of `en-US` the part before the region, and the code of an English
    name; None for anything else.
    """
    found = NAMES.get(str(language).lower(), str(language).replace("_", "-").partition("-")[0])
    return found if CODE.fullmatch(found) else None


def check_language(language: str) -> str | None:
    """The same code; None for `auto`. Raises UsageError on anything else."""
    if str(language).lower() == AUTO:
        return None
    found = language_code(language)
    if found is None:
        raise UsageError(
            f"language {language!r}: unknown; expected {AUTO}, an ISO 639 code as in fr, or one of "
            f"{', '.join(NAMES)}",
            field="language",
        )
    return found
