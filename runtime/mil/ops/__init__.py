"""Table of the operations, by their names in the op set of coremltools, and conversion of their inputs.

An operation receives floats as float32 whatever type the program declares, integers and booleans in their own
type, and strings as `str`. A parameter has the name and the default of the op set. Its annotation is an
array, a Python number, a string, a list of integers, or a list of arrays; each may be optional. Only inputs
that exports emit are parameters. NumPy types the result of most arithmetic as Any, so operations wrap
such a result in `np.asarray`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, get_args

import numpy as np

from voxport.runtime.mil.errors import UnsupportedError, require
from voxport.runtime.mil.ops import arithmetic, arrays
from voxport.runtime.mil.types import Array, Arrays, Ints, Operator

OPERATIONS: dict[str, Operator] = arithmetic.OPERATIONS | arrays.OPERATIONS


# The parameter `value` below comes from a program that may be malformed: hence Any.
def _numbers(kind: Callable[[Any], Any], name: str, dtype_kinds: str, rank: int = 0) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        array = np.asarray(value)
        if array.ndim > rank or array.dtype.kind not in dtype_kinds:
            raise TypeError(f"is {array.dtype}{list(array.shape)}, expected a {name}")
        return kind(value)

    return convert


def _string(value: Any) -> str:
    require(isinstance(value, str), "is not a string", TypeError)
    return str(value)


CONVERSIONS: dict[object, Callable[[Any], Any]] = {
    Array: np.asarray,
    Ints: _numbers(lambda value: [*map(int, np.atleast_1d(value))], "list of integers", "iub", rank=1),
    int: _numbers(int, "scalar of type int", "iu"),
    float: _numbers(float, "scalar of type float", "f"),
    bool: _numbers(bool, "scalar of type bool", "b"),
    str: _string,
}


class Signature:
    """The inputs of an operation: the parameters of its function, and inputs with a fixed value."""

    def __init__(self, function: Operator, fixed: Mapping[str, object]):
        self.fixed, self.parameters = fixed, inspect.signature(function).parameters
        annotations = {name: parameter.annotation for name, parameter in self.parameters.items()}
        self._types = {
            name: get_args(type)[0] if isinstance(type, UnionType) else type  # without `| None`
            for name, type in annotations.items()
        }

    def check(self, inputs: Mapping[str, Sequence[object]]) -> None:
        """Raises TypeError for an unknown or missing input, and for a list in place of one value."""
        for name, values in inputs.items():
            require(name in self._types or name in self.fixed, f"has no input {name!r}", TypeError)
            require(
                self._types.get(name) == Arrays or len(values) == 1,
                f"input {name!r} has {len(values)} values, expected 1",
                TypeError,
            )
        for name, parameter in self.parameters.items():
            is_given = parameter.default is not parameter.empty or name in inputs
            require(is_given, f"input {name!r} is missing", TypeError)

    def convert(self, inputs: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Converts inputs to keyword arguments.

        Raises TypeError that names a mistyped input, UnsupportedError for another value than the fixed one.
        """
        arguments = {}
        for name, values in inputs.items():
            if name in self.fixed:
                expected, found = self.fixed[name], np.asarray(values[0]).tolist()
                require(found == expected, f"{name} is {found!r}, expected {expected!r}", UnsupportedError)
                continue
            type = self._types[name]
            try:
                arguments[name] = list(values) if type == Arrays else CONVERSIONS[type](values[0])
            except TypeError as error:
                raise TypeError(f"input {name!r} {error}") from None
        return arguments


FIXED = arithmetic.FIXED | arrays.FIXED
SIGNATURES = {name: Signature(function, FIXED.get(name, {})) for name, function in OPERATIONS.items()}
