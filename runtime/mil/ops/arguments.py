"""How an operation's parameters are typed, and the values of a program turned into them.

A parameter bears the name and default that coremltools' op set gives it, and one of four kinds of annotation: an array, a
Python number or string, a list of integers, a list of arrays.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Ints = list[int]
Arrays = list[np.ndarray]
Operation = Callable[..., Any]


def _scalar(kind: type, held: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if np.ndim(value) or np.asarray(value).dtype.kind not in held:
            raise TypeError(
                f"is {np.asarray(value).dtype}{list(np.shape(value))}, expected a scalar of type {kind.__name__}"
            )
        return kind(value)

    return convert


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected a string")
    return value


def _ints(value: Any) -> Ints:
    if np.ndim(value) > 1 or np.asarray(value).dtype.kind not in "iub":
        raise TypeError(
            f"has type {np.asarray(value).dtype} and shape {list(np.shape(value))}, expected a list of integers"
        )
    return [int(number) for number in np.atleast_1d(value)]


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "Array": np.asarray,
    "Ints": _ints,
    "int": _scalar(int, "iu"),
    "float": _scalar(float, "f"),
    "bool": _scalar(bool, "b"),
    "str": _string,
}


class Signature:
    """What an operation takes."""

    def __init__(self, function: Operation):
        self._function = function
        self.parameters = inspect.signature(function).parameters
        self._kinds = {
            name: str(parameter.annotation).removesuffix(" | None")
            for name, parameter in self.parameters.items()
        }

    def check(self, given: Mapping[str, tuple]) -> None:
        """Raises TypeError on an input that the operation does not know or lacks, or that should be one value."""
        for name, values in given.items():
            if name not in self._kinds:
                raise TypeError(f"has no input {name!r}")
            if self._kinds[name] != "Arrays" and len(values) != 1:
                raise TypeError(f"input {name!r} has {len(values)} values, expected 1")
        missing = [
            name
            for name, parameter in self.parameters.items()
            if parameter.default is parameter.empty and name not in given
        ]
        if missing:
            raise TypeError(f"lacks its input {missing[0]!r}")

    def convert(self, given: Mapping[str, tuple]) -> dict[str, Any]:
        """Keyword arguments. Raises TypeError that names the input of another kind."""
        arguments = {}
        for name, values in given.items():
            kind = self._kinds[name]
            try:
                arguments[name] = list(values) if kind == "Arrays" else CONVERSIONS[kind](values[0])
            except TypeError as error:
                raise TypeError(f"input {name!r} {error}") from None
        return arguments
