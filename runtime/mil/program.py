"""The program of a specification, as plain data: functions, blocks, operations, constants."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from runtime.mil.errors import MilError, PackageError, UnsupportedError
from runtime.mil.interface import VERSIONS, Sizes, read_sizes
from runtime.mil.types import TensorType, tensor_type
from runtime.mil.weights import Packed, WeightFile, unpack

WEIGHTS_AT = "@model_path/"
FIELDS = {
    "floats": "f",
    "doubles": "f",
    "ints": "iu",
    "longInts": "iu",
    "bools": "b",
}  # of an immediate value, and the kinds they hold


@dataclass(frozen=True)
class Name:
    """A value that an operation, a block or a caller gives."""

    name: str


@dataclass(frozen=True)
class Constant:
    """A value that stands in the program or in its weight file; strings as `str`, numbers as arrays (rank 0 for scalars) or `Packed`."""

    value: Any
    kind: TensorType


@dataclass(frozen=True)
class Named:
    """An output of an operation, or an input of a function or block."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Operation:
    """`inputs` hold several values where an operation takes a list. `where` is its place, for messages."""

    type: str
    inputs: dict[str, tuple[Name | Constant, ...]]
    outputs: tuple[Named, ...]
    blocks: tuple[Block, ...]
    where: str


@dataclass(frozen=True)
class Block:
    """Operations in order; `outputs` names values of the block or of those around it."""

    inputs: tuple[Named, ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """What can be called: inputs, states and outputs by name."""

    name: str
    opset: str
    inputs: dict[str, TensorType]
    states: dict[str, TensorType]
    outputs: dict[str, TensorType]
    sizes: dict[str, Sizes]  # that inputs may have, as the package describes them
    body: Block
    shared: dict[Any, list[Any]]  # what executors of one package have prepared from the same weights

    def operations(self) -> Iterator[Operation]:
        """All of them, those of inner blocks too."""
        return _operations(self.body)


def _operations(block: Block) -> Iterator[Operation]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _operations(inner)


def check_names(block: Block, outer: Set[str], states: Set[str], where: str) -> None:
    """Whatever is taken was given before, in the block or around it, and nothing is given twice. Raises PackageError."""
    known = set(outer)
    _give(block.inputs, known, states, where)
    for operation in block.operations:
        taken = (
            value.name for values in operation.inputs.values() for value in values if isinstance(value, Name)
        )
        unknown = next((name for name in taken if name not in known and name not in states), None)
        if unknown is not None:
            raise PackageError(f"{operation.where}: takes {unknown}, which nothing before it gives")
        for index, inner in enumerate(operation.blocks):
            check_names(inner, known, states, f"{operation.where}, block {index}")
        _give(operation.outputs, known, states, operation.where)
    missing = next((name for name in block.outputs if name not in known), None)
    if missing is not None:
        raise PackageError(f"{where}: output {missing} is given by no operation")


def _give(named: tuple[Named, ...], known: set[str], states: Set[str], where: str) -> None:
    for value in named:
        if value.name in known or value.name in states:
            raise PackageError(f"{where}: gives {value.name} a second time")
        known.add(value.name)


class Reader:
    """Turns protobuf functions into `Function`, constants and weights included."""

    def __init__(self, spec: Any, weight_files: Any, shared: dict[Any, list[Any]]):
        """`weight_files(name)` opens the file that a program calls by a name below `@model_path/`."""
        self._spec, self._weight_files, self._shared = spec, weight_files, shared

    def function(self, name: str) -> Function:
        """Raises PackageError or UnsupportedError that says where."""
        proto = self._spec.mlProgram.functions[name]
        if proto.opset not in VERSIONS:
            raise UnsupportedError(
                f"function {name}: op set {proto.opset!r}; known are {', '.join(VERSIONS)}"
            )
        if proto.opset not in proto.block_specializations:
            raise PackageError(f"function {name}: has no block for its opset {proto.opset!r}")
        inputs: dict[str, TensorType] = {}
        states: dict[str, TensorType] = {}
        for entry in proto.inputs:
            if entry.name in inputs or entry.name in states:
                raise PackageError(f"function {name}: takes {entry.name} twice")
            into = states if entry.type.WhichOneof("type") == "stateType" else inputs
            into[entry.name] = self._typed(entry.type, f"function {name}, input {entry.name}")
        body = self._block(proto.block_specializations[proto.opset], f"function {name}")
        check_names(body, inputs.keys(), states.keys(), f"function {name}")
        types = {
            output.name: output.type for operation in _operations(body) for output in operation.outputs
        } | inputs
        outputs = {output: types[output] for output in body.outputs}
        sizes = read_sizes(self._spec, name, proto.opset, inputs, states, outputs)
        return Function(name, proto.opset, inputs, states, outputs, sizes, body, self._shared)

    def _typed(self, proto: Any, where: str) -> TensorType:
        try:
            return tensor_type(proto)
        except UnsupportedError as error:
            raise UnsupportedError(f"{where}: {error}") from None

    def _block(self, proto: Any, where: str) -> Block:
        inputs = tuple(
            Named(entry.name, self._typed(entry.type, f"{where}, block input {entry.name}"))
            for entry in proto.inputs
        )
        operations = tuple(
            self._operation(entry, f"{where}, operation {index} ({entry.type})")
            for index, entry in enumerate(proto.operations)
        )
        return Block(inputs, operations, tuple(proto.outputs))

    def _operation(self, proto: Any, where: str) -> Operation:
        inputs = {
            key: tuple(self._binding(binding, f"{where}, {key}") for binding in argument.arguments)
            for key, argument in proto.inputs.items()
        }
        # before iOS 18 a constexpr has its parameters as attributes; all others have only a name there, and a const its value
        attributes = {key: value for key, value in proto.attributes.items() if key != "name"}
        if attributes and not (
            proto.type.startswith("constexpr_") or (attributes.keys() == {"val"} and proto.type == "const")
        ):
            raise UnsupportedError(f"{where}: has attribute {min(attributes)!r}, which is not known")
        if proto.type == "const" and not attributes:
            raise PackageError(f"{where}: holds no value")
        inputs |= {key: (self._constant(value, f"{where}, {key}"),) for key, value in attributes.items()}
        outputs = tuple(
            Named(entry.name, self._typed(entry.type, f"{where}, output {entry.name}"))
            for entry in proto.outputs
        )
        if (proto.type == "const" or proto.type.startswith("constexpr_")) and not outputs:
            raise PackageError(f"{where}: declares no output")
        blocks = tuple(
            self._block(block, f"{where}, block {index}") for index, block in enumerate(proto.blocks)
        )
        return Operation(proto.type, inputs, outputs, blocks, where)

    def _binding(self, proto: Any, where: str) -> Name | Constant:
        if proto.WhichOneof("binding") == "name":
            return Name(proto.name)
        return self._constant(proto.value, where)

    def _constant(self, proto: Any, where: str) -> Constant:
        kind = self._typed(proto.type, where)
        try:
            if proto.WhichOneof("value") == "blobFileValue":
                return Constant(self._blob(proto.blobFileValue, kind), kind)
            return Constant(_immediate(proto.immediateValue, kind), kind)
        except MilError as error:
            raise type(error)(f"{where}: {error}") from None

    def _blob(self, proto: Any, kind: TensorType) -> np.ndarray | Packed:
        if not proto.fileName.startswith(WEIGHTS_AT):
            raise PackageError(f"a weight file {proto.fileName!r} outside the package")
        weights: WeightFile = self._weight_files(proto.fileName.removeprefix(WEIGHTS_AT))
        return weights.tensor(proto.offset, kind)


def _immediate(proto: Any, kind: TensorType) -> Any:
    if proto.WhichOneof("value") != "tensor":
        raise UnsupportedError(f"an immediate {proto.WhichOneof('value')}")
    field = proto.tensor.WhichOneof("value")
    if kind.fixed is None:
        raise PackageError(f"an immediate value of unknown shape {kind}")
    count = prod(kind.fixed)
    if field is None and count:
        raise PackageError(f"an immediate value of {kind} without content")
    held: Any = getattr(proto.tensor, field).values if field else ()
    if kind.scalar.name == "string":
        if field != "strings" or len(held) != count:
            raise PackageError(f"an immediate value of {kind} held as {field}")
        return held[0] if kind.fixed == () else list(held)
    if field == "bytes":
        if len(held) != -(-count * kind.scalar.bits // 8):
            raise PackageError(f"an immediate value of {kind} in {len(held)} bytes")
        return unpack(held, count, kind.scalar).reshape(kind.fixed)
    if len(held) != count:
        raise PackageError(f"an immediate value of {kind} with {len(held)} values")
    if field is not None and np.dtype(kind.scalar.held).kind not in FIELDS.get(field, ""):
        raise PackageError(f"an immediate value of {kind} held as {field}")
    array = np.array(held, dtype=np.float64 if kind.scalar.is_float else np.int64)
    with np.errstate(over="ignore"):
        found = array.astype(kind.scalar.held)
    if not kind.scalar.is_float and not np.array_equal(found, array):
        raise PackageError(f"an immediate value of {kind} with a number that it cannot hold")
    return found.reshape(kind.fixed)
