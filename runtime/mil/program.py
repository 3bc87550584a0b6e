"""The program of a specification as plain data: functions, operations, constants."""

from collections.abc import Callable, Hashable, Iterable, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from voxport.runtime.mil.types import (
    OPSET,
    Array,
    MilError,
    PackageError,
    TensorType,
    UnsupportedError,
    inputs_as_described,
    require,
    tensor_type,
)
from voxport.runtime.mil.weights import Packed, WeightFile, unpack

MODEL_PATH = "@model_path/"  # prefix of the weight file's name in a program
# Fields of an immediate value, with the NumPy dtype kinds that each may hold.
FIELDS = {"floats": "f", "ints": "iu", "bools": "b"}


@dataclass(frozen=True)
class Constant:
    """A value stored in the program or in the weight file.

    Numbers are arrays (rank 0 for scalars) or `Packed`.
    """

    value: Array | Packed | str
    type: TensorType


@dataclass(frozen=True)
class TypedName:
    """An output of an operation."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Operation:
    """An operation. `where` locates it in messages.

    Each input is a list of values, of length 1 for most: constants, or names of results and of inputs.
    """

    type: str
    inputs: dict[str, tuple[str | Constant, ...]]
    outputs: tuple[TypedName, ...]
    where: str


WeightCache = dict[Hashable, list[Any]]  # Any: arrays or strings, as in `Constant.value`


@dataclass(frozen=True)
class Function:
    """A callable function: its name, op set, types, and operations in order.

    `weight_cache` is shared by the executors of a package. It holds constants that are already decompressed.
    """

    name: str
    opset: str
    inputs: dict[str, TensorType]
    states: dict[str, TensorType]
    outputs: dict[str, TensorType]
    operations: tuple[Operation, ...]
    weight_cache: WeightCache


def check_names(
    operations: Iterable[Operation], outputs: Iterable[str], inputs: Set[str], states: Set[str], where: str
) -> None:
    """Checks that every name is defined before its use, and only once. Raises PackageError."""
    known = set(inputs)
    for operation in operations:
        used = (value for values in operation.inputs.values() for value in values if isinstance(value, str))
        for name in used:
            require(
                name in known or name in states,
                f"{operation.where}: uses {name}, which is not defined before it",
                PackageError,
            )
        for value in operation.outputs:
            require(
                value.name not in known and value.name not in states,
                f"{operation.where}: defines {value.name} a second time",
                PackageError,
            )
            known.add(value.name)
    for name in outputs:
        require(name in known, f"{where}: output {name} is not defined", PackageError)


# `spec` and `message` are protobuf messages of coremltools, which have no type stubs: hence Any.
class Reader:
    """Converts protobuf functions to `Function`, including constants and weights."""

    def __init__(self, spec: Any, weight_file: Callable[[str], WeightFile], cache: WeightCache):
        """`weight_file(name)` opens a weight file by its name relative to `@model_path/`."""
        self._spec, self._weight_file, self._cache = spec, weight_file, cache

    def function(self, name: str) -> Function:
        """Raises PackageError or UnsupportedError with the location in the program."""
        message = self._spec.mlProgram.functions[name]
        where, opset = f"function {name}", message.opset
        require(opset == OPSET, f"{where}: op set {opset!r}; expected {OPSET}", UnsupportedError)
        require(
            opset in message.block_specializations,
            f"{where}: has no block for its op set {opset!r}",
            PackageError,
        )
        inputs: dict[str, TensorType] = {}
        states: dict[str, TensorType] = {}
        for entry in message.inputs:
            require(
                entry.name not in inputs and entry.name not in states,
                f"{where}: has two inputs {entry.name}",
                PackageError,
            )
            group = states if entry.type.WhichOneof("type") == "stateType" else inputs
            group[entry.name] = self._type(entry.type, f"{where}, input {entry.name}")
        body = message.block_specializations[opset]
        require(not body.inputs, f"{where}: its block has inputs", UnsupportedError)
        operations = tuple(
            self._operation(entry, f"{where}, operation {index} ({entry.type})")
            for index, entry in enumerate(body.operations)
        )
        check_names(operations, body.outputs, inputs.keys(), states.keys(), where)
        types = {output.name: output.type for operation in operations for output in operation.outputs}
        outputs = {output: (types | inputs)[output] for output in body.outputs}
        declared = {"input": inputs, "state": states, "output": outputs}
        inputs = inputs_as_described(self._spec, name, declared)
        return Function(name, opset, inputs, states, outputs, operations, self._cache)

    def _type(self, message: Any, where: str) -> TensorType:
        try:
            return tensor_type(message)
        except UnsupportedError as error:
            raise UnsupportedError(f"{where}: {error}") from None

    def _operation(self, message: Any, where: str) -> Operation:
        require(not message.blocks, f"{where}: has nested blocks, expected none", UnsupportedError)
        inputs = {
            key: tuple(
                str(binding.name)
                if binding.WhichOneof("binding") == "name"
                else self._constant(binding.value, f"{where}, {key}")
                for binding in argument.arguments
            )
            for key, argument in message.inputs.items()
        }
        # Attributes are the name and the value of a const.
        attributes = {key: value for key, value in message.attributes.items() if key != "name"}
        is_const, is_constexpr = message.type == "const", message.type.startswith("constexpr_")
        if attributes and not (is_const and attributes.keys() == {"val"}):
            raise UnsupportedError(f"{where}: has unknown attribute {min(attributes)!r}")
        require(attributes or not is_const, f"{where}: has no value", PackageError)
        inputs |= {key: (self._constant(value, f"{where}, {key}"),) for key, value in attributes.items()}
        outputs = tuple(
            TypedName(entry.name, self._type(entry.type, f"{where}, output {entry.name}"))
            for entry in message.outputs
        )
        require(outputs or not (is_const or is_constexpr), f"{where}: declares no output", PackageError)
        return Operation(message.type, inputs, outputs, where)

    def _constant(self, message: Any, where: str) -> Constant:
        type = self._type(message.type, where)
        try:
            if message.WhichOneof("value") == "blobFileValue":
                return Constant(self._blob(message.blobFileValue, type), type)
            return Constant(_immediate(message.immediateValue, type), type)
        except MilError as error:
            raise error.__class__(f"{where}: {error}") from None

    def _blob(self, message: Any, type: TensorType) -> Array | Packed:
        require(
            message.fileName.startswith(MODEL_PATH),
            f"weight file {message.fileName!r} is outside the package",
            PackageError,
        )
        return self._weight_file(message.fileName.removeprefix(MODEL_PATH)).tensor(message.offset, type)


def _immediate(message: Any, type: TensorType) -> Array | str:
    form = message.WhichOneof("value")
    require(form == "tensor", f"an immediate {form}", UnsupportedError)
    field = message.tensor.WhichOneof("value")
    where = f"immediate value of type {type}"
    if type.fixed is None:
        raise PackageError(f"{where}: has no fixed shape")
    count = prod(type.fixed)
    require(field is not None or not count, f"{where}: has no content", PackageError)
    values: Any = getattr(message.tensor, field).values if field else ()
    if type.scalar.name == "string":
        is_one = field == "strings" and type.fixed == () and len(values) == 1
        require(is_one, f"{where}: has {len(values)} {field}, expected one string", PackageError)
        return str(values[0])
    if field == "bytes":
        require(
            len(values) == -(-count * type.scalar.bits // 8),
            f"{where}: has {len(values)} bytes",
            PackageError,
        )
        return unpack(values, count, type.scalar).reshape(type.fixed)
    require(len(values) == count, f"{where}: has {len(values)} values, expected {count}", PackageError)
    require(
        field is None or np.dtype(type.scalar.dtype).kind in FIELDS.get(field, ""),
        f"{where}: is stored as {field}",
        PackageError,
    )
    array = np.array(values, dtype=np.float64 if type.scalar.is_float else np.int64)
    with np.errstate(over="ignore"):
        converted = array.astype(type.scalar.dtype)
    require(
        type.scalar.is_float or np.array_equal(converted, array),
        f"{where}: has a number outside the range of its type",
        PackageError,
    )
    return converted.reshape(type.fixed)
