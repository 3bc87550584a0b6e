"""Checks a function before execution: every operation is implemented and the operand types agree."""

from voxport.runtime.mil.errors import PackageError, UnsupportedError, require
from voxport.runtime.mil.ops import OPERATIONS, SIGNATURES
from voxport.runtime.mil.program import Constant, Function, Operation
from voxport.runtime.mil.types import TensorType

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
        SIGNATURES[operation.type].check(operation.inputs)
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
