"""API keys: `name:key` per line of a file. Without a file every request is allowed."""

import hmac
from hashlib import sha256
from pathlib import Path

from voxport.bundle.errors import UsageError

MIN_CHARACTERS = 16
ANONYMOUS = ""


class Keys:
    """Keys are compared by their hashes in constant time, all of them in every look-up."""

    def __init__(self, hashes: dict[str, bytes] | None = None):
        """`hashes`: name -> SHA-256 of the key. None: no key is needed."""
        self._hashes = hashes

    def name(self, key: str | None) -> str | None:
        """The name of a key; None if it is not one of them."""
        if self._hashes is None:
            return ANONYMOUS
        found, given = None, sha256((key or "").encode()).digest()
        for name, each in self._hashes.items():
            if hmac.compare_digest(each, given):
                found = name
        return found


def read_keys(path: Path) -> Keys:
    """Raises UsageError that names the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"keys: {path}: {reason}; expected lines of name:key", field="keys") from None
    hashes: dict[str, bytes] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        name, key = (part.strip() for part in line.partition(":")[::2])
        if not (key.isascii() and key.isprintable()):
            raise UsageError(
                f"keys: {path}, line {number}: a key has characters that a header cannot have; expected "
                "printable ASCII",
                field="keys",
            )
        if not name or len(key) < MIN_CHARACTERS or name in hashes:
            raise UsageError(
                f"keys: {path}, line {number}: expected name:key, a new name and a key of at least "
                f"{MIN_CHARACTERS} characters",
                field="keys",
            )
        hashes[name] = sha256(key.encode()).digest()
    if not hashes:
        raise UsageError(f"keys: {path}: has no keys; expected lines of name:key", field="keys")
    return Keys(hashes)
