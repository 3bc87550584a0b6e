"""Objects in place of those that a test has no use for."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


def stand_in(**attributes: Any) -> Any:
    """An object with some attributes. Any: it stands in for every class."""
    return SimpleNamespace(**attributes)


def noting(call: Callable[..., Any], note: Callable[..., object]) -> Callable[..., Any]:
    """`call`, before which `note` gets the same arguments."""

    def noted(*arguments: Any, **options: Any) -> Any:
        note(*arguments, **options)
        return call(*arguments, **options)

    return noted
