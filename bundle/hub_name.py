"""Names of repositories in a model hub."""

import logging
import os
import re
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Self

from voxport.bundle.errors import UsageError

HUB_FORM = "OWNER/NAME[@REVISION]"  # as options show it
WORD = "[A-Za-z0-9][A-Za-z0-9_.-]*"
FORM = re.compile(f"({WORD}/{WORD})(?:@([A-Za-z0-9_./-]+))?")
ADDRESS = re.compile(f"(?:hf://|https://huggingface.co/){FORM.pattern}(?:/(?:tree|blob)/([^/]+)(?:/.*)?)?")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HubName:
    """`OWNER/NAME[@REVISION]`. The revision is a branch, a tag or a commit; None is the main branch."""

    repository: str
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """None for a path: one that exists, or whose first folder does. An address is never a path."""
        is_path = os.path.exists(text) or os.path.exists(text.partition("/")[0])
        found = ADDRESS.fullmatch(text) or (None if is_path else FORM.fullmatch(text))
        return cls(found[1], next(filter(None, found.groups()[1:]), None)) if found else None

    def __str__(self) -> str:
        return f"{self.repository}@{self.revision}" if self.revision else self.repository

    def set_up_client(self) -> None:
        """To be called before the client of the hub is imported. Raises UsageError if it is missing."""
        if find_spec("huggingface_hub") is None:
            revision = f" --revision {self.revision}" if self.revision else ""
            command = f"hf download {self.repository}{revision} --local-dir {self.repository.split('/')[1]}"
            reason = "using a hub needs the extra [hub], which is not installed"
            raise UsageError(f"{self}: {reason}; install it, or fetch a folder with: {command}")
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # what it warns of is a line or an error of ours
        if not (log.isEnabledFor(logging.INFO) and sys.stderr.isatty()):
            os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
