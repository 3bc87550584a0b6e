"""Language codes as people give them."""

import re

from bundle.errors import UsageError

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


def check_language(code: str) -> str:
    """Returns an ISO 639 code as it is, of `en-US` the part before the region, and the code of an English
    name. Raises UsageError.
    """
    found = NAMES.get(str(code).lower(), str(code).replace("_", "-").partition("-")[0])
    if not CODE.fullmatch(found):
        raise UsageError(
            f"language {code!r}: expected an ISO 639 code or an English name, as in fr or french",
            field="language",
        )
    return found
