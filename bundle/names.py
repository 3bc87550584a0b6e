"""Names that a person types: of targets, recipes, families and voices."""

from collections.abc import Iterable


def find_name(name: str, names: Iterable[str]) -> str:
    """The one of `names` that equals `name`, or the only one that does so in another case; else `name`."""
    known = list(names)
    alike = [each for each in known if each.casefold() == name.casefold()]
    return alike[0] if name not in known and len(alike) == 1 else name
