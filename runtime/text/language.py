"""The check of the name of a language."""

from voxport.bundle.errors import UsageError
from voxport.bundle.names import NAMES, language_code

AUTO = "auto"  # the model decides


def check_language(language: str, known: tuple[str, ...] = ()) -> str | None:
    """ISO 639 code of a code, a code with a region, or an English name; None for `auto`.

    Raises UsageError on anything else, and on a code that is not `known`, if any is.
    """
    if str(language).lower() == AUTO:
        return None
    found = language_code(language)
    if found is None:
        raise UsageError(
            f"language {language!r}: unknown; expected {AUTO}, an ISO 639 code as in fr, or one of "
            f"{', '.join(NAMES)}",
            field="language",
        )
    if known and found not in known:
        raise UsageError(
            f"language {language!r}: this model does not speak it; it has {', '.join((AUTO, *known))}",
            field="language",
        )
    return found
