"""The program of a specification as plain data: functions, blocks, operations, constants."""

from collections.abc import Callable, Hashable, Iterator, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from runtime.mil.errors import MilError, PackageError, UnsupportedError
from runtime.mil.interface import VERSIONS, AllowedShapes, Interface, read_allowed_shapes
from runtime.mil.types import Array, TensorType, tensor_type
from runtime.mil.weights import Packed, WeightFile, unpack

MODEL_PATH = "@model_path/"  # prefix of the weight file's name in a program
# Fields of an immediate value, with the NumPy dtype kinds that each may hold.
FIELDS = {"floats": "f", "doubles": "f", "ints": "iu", "longInts": "iu", "bools": "b"}


@dataclass(frozen=True)
class Name:
    """A reference to the result of an operation, or to an input of a block or function."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A value stored in the program or in the weight file.

    Numbers are arrays (rank 0 for scalars) or `Packed`; strings are `str`, or a list of `str`.
    """

    value: Array | Packed | str | list[str]
    type: TensorType


@dataclass(frozen=True)
class TypedName:
    """An output of an operation, or an input of a block."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Operation:
    """An operation. Each input is a list of values, of length 1 for most. `where` locates it in messages."""

    type: str
    inputs: dict[str, tuple[Name | Constant, ...]]
    outputs: tuple[TypedName, ...]
    blocks: "tuple[Block, ...]"
    where: str


@dataclass(frozen=True)
class Block:
    """Operations in order. `outputs` are names of values of this block or of an enclosing one."""

    inputs: tuple[TypedName, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]


WeightCache = dict[Hashable, list[Any]]  # Any: arrays, strings or lists of strings, as in `Constant.value`


@dataclass(frozen=True)
class Function(Interface):
    """A callable function: its interface and its body.

    `weight_cache` is shared by the executors of a package. It holds constants that are already decompressed.
    """

    allowed_shapes: dict[str, AllowedShapes]
    body: Block
    weight_cache: WeightCache

    def operations(self) -> Iterator[Operation]:
        """All operations in order, including those of nested blocks."""
        return _operations(self.body)

    def declared_input(self, name: str) -> str:
        """Scalar type and permitted shapes of an input, as text."""
        type = self.inputs[name]
        return f"{type.scalar.name}{self.allowed_shapes[name]}" if name in self.allowed_shapes else str(type)


def _operations(block: Block) -> Iterator[Operation]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _operations(inner)


def check_names(block: Block, outer: Set[str], states: Set[str], where: str) -> None:
    """Checks that every name is defined before its use, in the block or an enclosing one, and only once.

    Raises PackageError.
    """
    known = set(outer)
    _define(block.inputs, known, states, where)
    for operation in block.operations:
        used = (
            value.name for values in operation.inputs.values() for value in values if isinstance(value, Name)
        )
        unknown = next((name for name in used if name not in known and name not in states), None)
        if unknown is not None:
            raise PackageError(f"{operation.where}: uses {unknown}, which is not defined before it")
        for index, inner in enumerate(operation.blocks):
            check_names(inner, known, states, f"{operation.where}, block {index}")
        _define(operation.outputs, known, states, operation.where)
    missing = next((name for name in block.outputs if name not in known), None)
    if missing is not None:
        raise PackageError(f"{where}: output {missing} is not defined")


def _define(values: tuple[TypedName, ...], known: set[str], states: Set[str], where: str) -> None:
    for value in values:
        if value.name in known or value.name in states:
            raise PackageError(f"{where}: defines {value.name} a second time")
        known.add(value.name)


# `spec` and `message` are protobuf messages of coremltools, which have no type stubs: hence Any.
class Reader:
    """Converts protobuf functions to `Function`, including constants and weights."""

    def __init__(self, spec: Any, weight_file: Callable[[str], WeightFile], cache: WeightCache):
        """`weight_file(name)` opens a weight file by its name relative to `@model_path/`."""
        self._spec, self._weight_file, self._cache = spec, weight_file, cache

    def function(self, name: str) -> Function:
        """Raises PackageError or UnsupportedError with the location in the program."""
        message = self._spec.mlProgram.functions[name]
        if message.opset not in VERSIONS:
            known = ", ".join(VERSIONS)
            raise UnsupportedError(f"function {name}: op set {message.opset!r}; expected one of {known}")
        if message.opset not in message.block_specializations:
            raise PackageError(f"function {name}: has no block for its op set {message.opset!r}")
        inputs: dict[str, TensorType] = {}
        states: dict[str, TensorType] = {}
        for entry in message.inputs:
            if entry.name in inputs or entry.name in states:
                raise PackageError(f"function {name}: has two inputs {entry.name}")
            group = states if entry.type.WhichOneof("type") == "stateType" else inputs
            group[entry.name] = self._type(entry.type, f"function {name}, input {entry.name}")
        body = self._block(message.block_specializations[message.opset], f"function {name}")
        check_names(body, inputs.keys(), states.keys(), f"function {name}")
        types = {output.name: output.type for operation in _operations(body) for output in operation.outputs}
        outputs = {output: (types | inputs)[output] for output in body.outputs}
        interface = Interface(name, message.opset, inputs, states, outputs)
        shapes = read_allowed_shapes(self._spec, interface)
        return Function(**vars(interface), allowed_shapes=shapes, body=body, weight_cache=self._cache)

    def _type(self, message: Any, where: str) -> TensorType:
        try:
            return tensor_type(message)
        except UnsupportedError as error:
            raise UnsupportedError(f"{where}: {error}") from None

    def _typed_names(self, entries: Any, where: str) -> tuple[TypedName, ...]:
        return tuple(
            TypedName(entry.name, self._type(entry.type, f"{where} {entry.name}")) for entry in entries
        )

    def _block(self, message: Any, where: str) -> Block:
        inputs = self._typed_names(message.inputs, f"{where}, block input")
        operations = tuple(
            self._operation(entry, f"{where}, operation {index} ({entry.type})")
            for index, entry in enumerate(message.operations)
        )
        return Block(inputs, operations, tuple(message.outputs))

    def _operation(self, message: Any, where: str) -> Operation:
        inputs = {
            key: tuple(self._binding(binding, f"{where}, {key}") for binding in argument.arguments)
            for key, argument in message.inputs.items()
        }
        # Attributes are the name, the value of a const, and before iOS 18 the inputs of a constexpr.
        attributes = {key: value for key, value in message.attributes.items() if key != "name"}
        is_const, is_constexpr = message.type == "const", message.type.startswith("constexpr_")
        if attributes and not is_constexpr and not (is_const and attributes.keys() == {"val"}):
            raise UnsupportedError(f"{where}: has unknown attribute {min(attributes)!r}")
        if is_const and not attributes:
            raise PackageError(f"{where}: has no value")
        inputs |= {key: (self._constant(value, f"{where}, {key}"),) for key, value in attributes.items()}
        outputs = self._typed_names(message.outputs, f"{where}, output")
        if (is_const or is_constexpr) and not outputs:
            raise PackageError(f"{where}: declares no output")
        blocks = tuple(
            self._block(block, f"{where}, block {index}") for index, block in enumerate(message.blocks)
        )
        return Operation(message.type, inputs, outputs, blocks, where)

    def _binding(self, message: Any, where: str) -> Name | Constant:
        if message.WhichOneof("binding") == "name":
            return Name(message.name)
        return self._constant(message.value, where)

    def _constant(self, message: Any, where: str) -> Constant:
        type = self._type(message.type, where)
        try:
            if message.WhichOneof("value") == "blobFileValue":
                return Constant(self._blob(message.blobFileValue, type), type)
            return Constant(_immediate(message.immediateValue, type), type)
        except MilError as error:
            raise error.__class__(f"{where}: {error}") from None

    def _blob(self, message: Any, type: TensorType) -> Array | Packed:
        if not message.fileName.startswith(MODEL_PATH):
            raise PackageError(f"weight file {message.fileName!r} is outside the package")
        return self._weight_file(message.fileName.removeprefix(MODEL_PATH)).tensor(message.offset, type)


def _immediate(message: Any, type: TensorType) -> Array | str | list[str]:
    """A value that is stored in the program itself."""
    form = message.WhichOneof("value")
    if form != "tensor":
        raise UnsupportedError(f"an immediate {form}")
    field = message.tensor.WhichOneof("value")
    where = f"immediate value of type {type}"
    if type.fixed is None:
        raise PackageError(f"{where}: has no fixed shape")
    count = prod(type.fixed)
    if field is None and count:
        raise PackageError(f"{where}: has no content")
    values: Any = getattr(message.tensor, field).values if field else ()
    if type.scalar.name == "string":
        if field != "strings" or len(values) != count:
            raise PackageError(f"{where}: is stored as {field}")
        return str(values[0]) if type.fixed == () else list(values)
    if field == "bytes":
        if len(values) != -(-count * type.scalar.bits // 8):
            raise PackageError(f"{where}: has {len(values)} bytes")
        return unpack(values, count, type.scalar).reshape(type.fixed)
    if len(values) != count:
        raise PackageError(f"{where}: has {len(values)} values, expected {count}")
    if field is not None and np.dtype(type.scalar.dtype).kind not in FIELDS.get(field, ""):
        raise PackageError(f"{where}: is stored as {field}")
    array = np.array(values, dtype=np.float64 if type.scalar.is_float else np.int64)
    with np.errstate(over="ignore"):
        converted = array.astype(type.scalar.dtype)
    if not type.scalar.is_float and not np.array_equal(converted, array):
        raise PackageError(f"{where}: has a number outside the range of its type")
    return converted.reshape(type.fixed)
