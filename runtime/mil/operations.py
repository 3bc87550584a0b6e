"""Table of the operations, by their names in the op set of coremltools, and checks of their inputs and types.

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

from voxport.runtime.mil import arithmetic, arrays
from voxport.runtime.mil.program import Constant, Function, Operation
from voxport.runtime.mil.types import (
    Array,
    Arrays,
    Ints,
    Operator,
    PackageError,
    TensorType,
    UnsupportedError,
    require,
)

OPERATIONS: dict[str, Operator] = arithmetic.OPERATIONS | arrays.OPERATIONS
# Operations that the executor implements itself, with the names of their inputs.
STRUCTURAL = {
    "const": {"val"},
    "read_state": {"input"},
    "write_state": {"input", "data"},
}
# Inputs that must have the same scalar type if an operation has several of them.
OPERANDS = (
    *("x", "y", "values", "a", "b", "data", "weight", "bias", "query", "key", "value", "gamma", "beta"),
)
# Operations whose result type differs from the type of their operands.
COMPARISONS = ("equal", "greater", "greater_equal", "less")
CONVERTING = (*COMPARISONS, "cast", "shape", "fill_like", "reduce_argmax", "reduce_argmin")


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


class OperationInputs:
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
OPERATION_INPUTS = {
    name: OperationInputs(function, FIXED.get(name, {})) for name, function in OPERATIONS.items()
}


def check_operations(function: Function) -> None:
    """Checks all operations of a function.

    Raises UnsupportedError for an unknown operation or input, PackageError for types that do not agree.
    """
    types = dict(function.inputs) | dict(function.states)
    for operation in function.operations:
        types |= {value.name: value.type for value in operation.outputs}
    for operation in function.operations:
        _check_form(operation)
        _check_types(operation, types)


def _check_form(operation: Operation) -> None:
    if operation.type in STRUCTURAL:
        expected = STRUCTURAL[operation.type]
        require(
            operation.inputs.keys() == expected,
            f"{operation.where}: inputs {', '.join(operation.inputs)}; expected {', '.join(expected)}",
            UnsupportedError,
        )
        return
    require(
        operation.type in OPERATIONS,
        f"{operation.where}: the executor has no operation {operation.type}",
        UnsupportedError,
    )
    try:
        OPERATION_INPUTS[operation.type].check(operation.inputs)
    except TypeError as error:
        raise UnsupportedError(f"{operation.where}: {error}") from None


def _check_types(operation: Operation, types: dict[str, TensorType]) -> None:
    if operation.type in STRUCTURAL or operation.type.startswith("constexpr_"):
        return
    operands = [
        (key, (value.type if isinstance(value, Constant) else types[value]).scalar.name)
        for key in OPERANDS
        for value in operation.inputs.get(key, ())
    ]
    scalars = sorted({scalar for _, scalar in operands})
    if len(scalars) > 1:
        listed = ", ".join(f"{key} {scalar}" for key, scalar in dict(operands).items())
        raise PackageError(f"{operation.where}: operands of types {' and '.join(scalars)}: {listed}")
    declared = operation.outputs[0].type.scalar.name if operation.outputs else None
    if operation.type not in CONVERTING and scalars and declared not in (None, *scalars):
        raise PackageError(f"{operation.where}: operands of type {scalars[0]}, declared result {declared}")
