"""Whether the executor knows all that a function asks for, and whether its types agree, before anything runs."""

from __future__ import annotations

from runtime.mil.errors import PackageError, UnsupportedError
from runtime.mil.ops import OPERATIONS, SIGNATURES
from runtime.mil.program import Constant, Function, Operation
from runtime.mil.types import TensorType

STRUCTURAL = {
    "const": {"val"},
    "read_state": {"input"},
    "write_state": {"input", "data"},
    "cond": {"pred"},
    "while_loop": {"loop_vars"},
}
# Operands that the op set wants of one type. Where an operation gives another type than it takes, that follows from its name.
OPERANDS = (
    "x",
    "y",
    "values",
    "a",
    "b",
    "data",
    "update",
    "updates",
    "weight",
    "bias",
    "query",
    "key",
    "value",
    "gamma",
    "beta",
    "mean",
    "variance",
)
COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
CONVERTING = (
    *COMPARISONS,
    "cast",
    "quantize",
    "dequantize",
    "shape",
    "fill_like",
    "non_zero",
    "reduce_argmax",
    "reduce_argmin",
    "argsort",
)


def check_operations(function: Function) -> None:
    """Raises UnsupportedError that names an operation or input that is not known, PackageError on types that do not agree."""
    types = dict(function.inputs) | dict(function.states)
    for operation in function.operations():
        types |= {named.name: named.type for block in operation.blocks for named in block.inputs}
        types |= {named.name: named.type for named in operation.outputs}
    for operation in function.operations():
        _check_form(operation)
        _check_types(operation, types)


def _check_form(operation: Operation) -> None:
    if operation.type in STRUCTURAL:
        if operation.inputs.keys() != STRUCTURAL[operation.type]:
            raise UnsupportedError(
                f"{operation.where}: inputs {', '.join(operation.inputs)}; expected {', '.join(STRUCTURAL[operation.type])}"
            )
        if len(operation.blocks) != (2 if operation.type in ("cond", "while_loop") else 0):
            raise PackageError(f"{operation.where}: has {len(operation.blocks)} blocks")
        return
    if operation.type not in OPERATIONS or operation.blocks:
        raise UnsupportedError(f"{operation.where}: the executor has no operation {operation.type}")
    try:
        SIGNATURES[operation.type].check(operation.inputs)
    except TypeError as error:
        raise UnsupportedError(f"{operation.where}: {error}") from None


def _check_types(operation: Operation, types: dict[str, TensorType]) -> None:
    if operation.type in STRUCTURAL or operation.type.startswith("constexpr_"):
        return
    kinds = {
        key: [value.kind if isinstance(value, Constant) else types[value.name] for value in values]
        for key, values in operation.inputs.items()
    }
    operands = {key: kind.scalar.name for key in OPERANDS for kind in kinds.get(key, ())}
    taken = sorted({kind.scalar.name for key in OPERANDS for kind in kinds.get(key, ())})
    if len(taken) > 1:
        raise PackageError(
            f"{operation.where}: takes {' and '.join(taken)} together: {', '.join(f'{key} {kind}' for key, kind in operands.items())}"
        )
    given = operation.outputs[0].type.scalar.name if operation.outputs else None
    if operation.type not in CONVERTING and taken and given not in (None, *taken):
        raise PackageError(f"{operation.where}: takes {taken[0]} and declares {given}")
