"""How an answer and the log name fields of a client that had no effect."""

import logging
import re
from collections.abc import Iterable
from functools import lru_cache

from voxport.runtime.serve.errors import ApiError

UNKNOWN = "unknown_field"
IGNORED_HEADER = "x-voxport-ignored"
MAX_IGNORED, MAX_NAME = 20, 60  # names in an answer, and characters of a name
UNSAFE = re.compile(r"[^!-+\--~]")  # characters of a name that a list in a header cannot have
log = logging.getLogger(__name__)


def as_header(name: str) -> str:
    """The name in printable ASCII, of at most `MAX_NAME` characters."""
    return UNSAFE.sub("?", name)[:MAX_NAME]


def at_most(names: tuple[str, ...]) -> tuple[str, ...]:
    """The first `MAX_IGNORED` names, and how many more there are."""
    more = (f"and {len(names) - MAX_IGNORED} more",) if len(names) > MAX_IGNORED else ()
    return names[:MAX_IGNORED] + more


def ignored_headers(names: tuple[str, ...], client: str) -> dict[str, str]:
    """The header that names the fields without effect; none if all had one. `client` is named in the log."""
    names = at_most(names)
    log_ignored(client, names)
    return {IGNORED_HEADER: ", ".join(names)} if names else {}


@lru_cache(1024)
def log_ignored(client: str, names: tuple[str, ...]) -> None:
    """Logs once per client and fields."""
    if names:
        log.info("fields without effect from %.80r: %s", client, ", ".join(names))


class UnknownFields:
    """Unknown fields of the messages of one socket. Each is named in one answer, but of more than
    `MAX_IGNORED` only that there are more.
    """

    def __init__(self, is_strict: bool):
        self.is_strict = is_strict
        self._known: set[str] = set()
        self._new: list[str] = []

    def add(self, names: Iterable[str]) -> None:
        """Raises ApiError if the server is strict."""
        for name in map(as_header, names):
            if self.is_strict:
                raise ApiError(400, f"{name}: has no effect; leave it out", UNKNOWN, name)
            if name not in self._known and len(self._known) >= MAX_IGNORED:
                name = "and more"
            if name not in self._known:
                self._known.add(name)
                self._new.append(name)

    def take(self) -> tuple[str, ...]:
        """The fields that no answer has named yet."""
        found, self._new = tuple(self._new), []
        return found
