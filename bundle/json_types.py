"""JSON from strangers: the type of its objects, and checks that a schema of pydantic does not make."""

from pathlib import Path
from typing import Any

from pydantic import JsonValue

from voxport.bundle.errors import IntegrityError

Json = dict[str, Any]  # Any: JSON content


def unknown_keys(found: JsonValue, known: JsonValue, path: str = "") -> list[str]:
    """Paths of the keys in a JSON value that a record read from it does not have."""
    if isinstance(found, dict) and isinstance(known, dict):
        unknown = [f"{path}{key}" for key in found if key not in known]
        pairs = [(found[key], known[key], f"{path}{key}.") for key in found if key in known]
    elif isinstance(found, list) and isinstance(known, list):
        unknown, pairs = [], [(one, other, path) for one, other in zip(found, known, strict=True)]
    else:
        return []
    return list(dict.fromkeys(unknown + [key for pair in pairs for key in unknown_keys(*pair)]))


def without_duplicates(pairs: list[tuple[str, Any]]) -> Json:
    """Raises ValueError on a key that comes twice: two readers would see two manifests."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)[:50]!r} comes twice")
    return found


def check_printable(path: Path, content: Any) -> None:
    """Raises IntegrityError on a text with control characters: messages print texts of a manifest."""
    todo = [content]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            todo += [*value, *value.values()]
        elif isinstance(value, list):
            todo += value
        elif isinstance(value, str) and not value.isprintable():
            raise IntegrityError(
                f"{path}: the text {value[:50]!r} has control characters; export the bundle again"
            )
