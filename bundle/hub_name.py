"""Names of repositories in a model hub."""

import logging
import os
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Self
from urllib.parse import unquote, urlsplit

from voxport.bundle.errors import UsageError

HUB_FORM = "OWNER/NAME[@REVISION]"  # as options show it
WORD = "[A-Za-z0-9][A-Za-z0-9_.-]*"
FORM = re.compile(f"({WORD}/{WORD})(?:@([A-Za-z0-9_./-]+))?")
HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
FOLDERS = ("artifacts", "checkpoints")  # of bundles and checkpoints, in our documents
log = logging.getLogger(__name__)


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

    def set_up_client(self) -> None:
        """To be called before the client of the hub is imported. Raises UsageError if it is missing."""
        if find_spec("huggingface_hub") is None:
            revision = f" --revision {self.revision}" if self.revision else ""
            command = f"hf download {self.repository}{revision} --local-dir {self.repository.split('/')[1]}"
            reason = "no such folder; as a name of the hub, it needs a package that is not installed"
            advice = f"run pip install 'voxport[hub]', or fetch a folder with: {command}"
            raise UsageError(f"{self}: {reason}; {advice}")
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # what it warns of is a line or an error of ours
        if not (log.isEnabledFor(logging.INFO) and sys.stderr.isatty()):
            os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"


def _on_page(address: str) -> str:
    """`OWNER/NAME[@REVISION]` of the address of a page of a model; empty for other addresses."""
    if address.split("/")[2].lower() not in HOSTS:
        return ""
    parts = map(unquote, urlsplit(address).path.split("/")[1:5])
    owner, name, kind, revision = (*parts, "", "", "", "")[:4]
    at = f"@{revision}" if kind in ("tree", "blob", "resolve") and revision else ""
    return "" if owner in ("datasets", "spaces") else f"{owner}/{name}{at}"
