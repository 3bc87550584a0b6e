"""Parameter types of operations, and the conversion of a program's values to them.

A parameter has the name and the default of coremltools' op set. Its annotation is an array, a Python number,
a string, a list of integers, or a list of arrays; each may be optional. NumPy types the result of most
arithmetic as Any, so operations wrap such a result in `np.asarray`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from runtime.mil.types import Array

Ints = list[int]
Arrays = list[Array]
Operation = Callable[
    ..., Any
]  # Any: parameters differ per operation, the result is an array or a list of arrays


# The parameter `value` below comes from a program that may be malformed: hence Any.
def _scalar(kind: Callable[[Any], Any], name: str, dtype_kinds: str) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if np.ndim(value) or np.asarray(value).dtype.kind not in dtype_kinds:
            found = f"{np.asarray(value).dtype}{list(np.shape(value))}"
            raise TypeError(f"is {found}, expected a scalar of type {name}")
        return kind(value)

    return convert


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("is not a string")
    return value


def _ints(value: Any) -> Ints:
    if np.ndim(value) > 1 or np.asarray(value).dtype.kind not in "iub":
        found = f"{np.asarray(value).dtype}{list(np.shape(value))}"
        raise TypeError(f"is {found}, expected a list of integers")
    return [int(number) for number in np.atleast_1d(value)]


CONVERSIONS: dict[str, Callable[[Any], Any]] = {
    "Array": np.asarray,
    "Ints": _ints,
    "int": _scalar(int, "int", "iu"),
    "float": _scalar(float, "float", "f"),
    "bool": _scalar(bool, "bool", "b"),
    "str": _string,
}


class Signature:
    """The parameters of an operation."""

    def __init__(self, function: Operation):
        self.parameters = inspect.signature(function).parameters
        self._annotations = {
            name: str(parameter.annotation).removesuffix(" | None")
            for name, parameter in self.parameters.items()
        }

    def check(self, inputs: Mapping[str, Sequence[object]]) -> None:
        """Raises TypeError for an unknown or missing input, and for a list where one value is expected."""
        for name, values in inputs.items():
            if name not in self._annotations:
                raise TypeError(f"has no input {name!r}")
            if self._annotations[name] != "Arrays" and len(values) != 1:
                raise TypeError(f"input {name!r} has {len(values)} values, expected 1")
        for name, parameter in self.parameters.items():
            if parameter.default is parameter.empty and name not in inputs:
                raise TypeError(f"input {name!r} is missing")

    def convert(self, inputs: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Converts inputs to keyword arguments. Raises TypeError with the name of a mistyped input."""
        arguments = {}
        for name, values in inputs.items():
            annotation = self._annotations[name]
            try:
                is_list = annotation == "Arrays"
                arguments[name] = list(values) if is_list else CONVERSIONS[annotation](values[0])
            except TypeError as error:
                raise TypeError(f"input {name!r} {error}") from None
        return arguments
