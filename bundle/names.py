"""Names that a person types: of targets, recipes, voices, languages and repositories of a model hub."""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import unquote, urlsplit

from voxport.bundle.errors import UsageError

HUB_FORM = "OWNER/NAME[@REVISION]"  # as options show it
WORD = "[A-Za-z0-9][A-Za-z0-9_.-]*"
FORM = re.compile(f"({WORD}/{WORD})(?:@([A-Za-z0-9_./-]+))?")
HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
FOLDERS = ("artifacts", "checkpoints")  # our documents have bundles and checkpoints there
CODE = re.compile("[a-z]{2,3}")
NAMES = {  # languages and their codes
    "arabic": "ar",
    "cantonese": "yue",
    "chinese": "zh",
    "czech": "cs",
    "danish": "da",
    "dutch": "nl",
    "english": "en",
    "filipino": "fil",
    "finnish": "fi",
    "french": "fr",
    "german": "de",
    "greek": "el",
    "hebrew": "he",
    "hindi": "hi",
    "hungarian": "hu",
    "indonesian": "id",
    "italian": "it",
    "japanese": "ja",
    "korean": "ko",
    "macedonian": "mk",
    "malay": "ms",
    "persian": "fa",
    "polish": "pl",
    "portuguese": "pt",
    "romanian": "ro",
    "russian": "ru",
    "spanish": "es",
    "swedish": "sv",
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


@dataclass(frozen=True)
class HubName:
    """`OWNER/NAME[@REVISION]`. The revision is a branch, a tag or a commit; None is the main branch."""

    repository: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for a path: one that exists, or whose first folder does or is in `FOLDERS`.

        An address is never a path. Raises UsageError on one that names no repository.
        """
        first = text.partition("/")[0]
        is_path = (
            os.path.exists(text) or os.path.exists(first) or first in FOLDERS or not FORM.fullmatch(text)
        )
        return cls.of_hub(text) if "://" in text or not is_path else None

    @classmethod
    def of_hub(cls, text: str) -> Self:
        """The name in `text`, which is no path: a name, or an address. Raises UsageError without one."""
        scheme, is_address, rest = text.partition("://")
        name = _on_page(text) if is_address and scheme != "hf" else (rest or text).rstrip("/")
        if not (found := FORM.fullmatch(name)):
            raise UsageError(f"{text}: expected hf://{HUB_FORM}, or the address of a model at {HOSTS[0]}")
        return cls(*found.groups())

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository


def _on_page(address: str) -> str:
    """`OWNER/NAME[@REVISION]` of the address of a page of a model; empty for other addresses."""
    if address.split("/")[2].lower() not in HOSTS:
        return ""
    parts = map(unquote, urlsplit(address).path.split("/")[1:5])
    owner, name, kind, revision = (*parts, "", "", "", "")[:4]
    at = f"@{revision}" if kind in ("tree", "blob", "resolve") and revision else ""
    return "" if owner in ("datasets", "spaces") else f"{owner}/{name}{at}"
