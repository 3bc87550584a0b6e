"""Language codes as people give them."""

import re

from bundle.errors import UsageError

CODE = re.compile("[a-z]{2,3}")


def check_language(code: str) -> str:
    """Returns an ISO 639 code as it is, and of `en-US` the part before the region. Raises UsageError."""
    found = str(code).replace("_", "-").partition("-")[0]
    if not CODE.fullmatch(found):
        raise UsageError(f"language {code!r}: expected an ISO 639 code, as in fr", field="language")
    return found
