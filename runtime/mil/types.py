"""Types of MIL values, and errors. Scalar types have the numbers of `MIL.proto` and their NumPy types.

Core ML rejects inputs outside the described sizes, and descriptions that do not match the program.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

# The scalar type of an array is known only from the program, at run time: hence Any.
Array = npt.NDArray[Any]
Arrays = list[Array]
Ints = list[int]
# The parameters differ per operation, the result is an array or a list of arrays: hence Any.
Operator = Callable[..., Any]


class MilError(Exception):
    """Base class. Raised as such by an operation whose result is undefined for the given values."""


class PackageError(MilError):
    """The package is damaged, incomplete, or not an ML program."""


class CallError(MilError):
    """An unknown or missing input, state or function, or an array of another shape or type than declared."""


class UnsupportedError(MilError):
    """The executor does not implement an operation, attribute or type."""


def require(condition: object, message: str, error: type[Exception] = MilError) -> None:
    """Raises the error unless the condition holds."""
    if not condition:
        raise error(message)


@dataclass(frozen=True)
class ScalarType:
    """A scalar type: its name, NumPy type, and width on disk in bits.

    Values of 4 bits are packed on disk, the low half of a byte first, and take one byte each in NumPy.
    """

    name: str
    dtype: type[np.generic]
    bits: int
    signed: bool = False

    @cached_property  # asked for every result of an executed operation
    def is_float(self) -> bool:
        return self.name.startswith(("fp", "bf"))


SCALARS = {
    1: ScalarType("bool", np.bool_, 8),
    2: ScalarType("string", np.str_, 0),
    10: ScalarType("fp16", np.float16, 16),
    11: ScalarType("fp32", np.float32, 32),
    21: ScalarType("int8", np.int8, 8, True),
    22: ScalarType("int16", np.int16, 16, True),
    23: ScalarType("int32", np.int32, 32, True),
    25: ScalarType("int4", np.int8, 4, True),
    32: ScalarType("uint16", np.uint16, 16),
    35: ScalarType("uint4", np.uint8, 4),
}
MAX_RANK = 16
MAX_VALUES = 2**33  # per tensor; the largest weight of a published model has 2^29
UNKNOWN = (0, MAX_VALUES)  # sizes of an axis that is not known before the call
BY_NAME = {scalar.name: scalar for scalar in SCALARS.values()}
# Values of ArrayFeatureType.ArrayDataType.
ARRAY_TYPES = {65552: "fp16", 65568: "fp32", 131104: "int32"}
OPSET, VERSION = "CoreML8", 9  # the op set of iOS 18 and the first specification version that includes it


@dataclass(frozen=True)
class TensorType:
    """A scalar type, and the smallest and largest size of each axis."""

    scalar: ScalarType
    sizes: tuple[tuple[int, int], ...]

    @cached_property  # asked for every result of an executed operation
    def fixed(self) -> tuple[int, ...] | None:
        """The shape if every size is known, otherwise None."""
        is_fixed = all(low == high for low, high in self.sizes)
        return tuple(low for low, _ in self.sizes) if is_fixed else None

    def fits(self, shape: tuple[int, ...]) -> bool:
        return self.fixed == shape or (
            len(shape) == len(self.sizes)
            and all(low <= size <= high for size, (low, high) in zip(shape, self.sizes, strict=True))
        )

    def __str__(self) -> str:
        return f"{self.scalar.name}[{', '.join(map(_size_text, self.sizes))}]"


def _size_text(size: tuple[int, int]) -> str:
    low, high = size
    return "?" if size == UNKNOWN else str(low) if low == high else f"{low}..{high}"


def tensor_type(message: Any) -> TensorType:
    """The type of a tensor, or of the tensor in a state.

    `message` is a protobuf `ValueType`, which has no type stubs: hence Any. Raises UnsupportedError for other
    types.
    """
    form = message.WhichOneof("type")
    if form == "stateType":
        return tensor_type(message.stateType.wrappedType)
    require(form == "tensorType", f"a value of type {form}", UnsupportedError)
    tensor = message.tensorType
    expected = f"expected one of {', '.join(BY_NAME)}"
    require(
        tensor.dataType in SCALARS, f"a tensor of data type {tensor.dataType}; {expected}", UnsupportedError
    )
    is_variadic = any(size.unknown.variadic for size in tensor.dimensions)
    require(not is_variadic, "a tensor of unknown rank", UnsupportedError)
    constants = [size.constant.size for size in tensor.dimensions if size.HasField("constant")]
    require(
        len(tensor.dimensions) <= MAX_RANK and prod(filter(None, constants)) <= MAX_VALUES,
        f"a tensor of {len(tensor.dimensions)} axes {constants[:8]}",
        UnsupportedError,
    )
    sizes = tuple(
        (size.constant.size, size.constant.size) if size.HasField("constant") else UNKNOWN
        for size in tensor.dimensions
    )
    return TensorType(SCALARS[tensor.dataType], sizes)


# `spec`, `features` and `type` are protobuf messages of coremltools, which have no type stubs: hence Any.
def inputs_as_described(
    spec: Any, name: str, types: Mapping[str, Mapping[str, TensorType]]
) -> dict[str, TensorType]:
    """The inputs of a function, with the sizes that the description of the package permits.

    `types` are the types in the program, for `input`, `state` and `output`. Raises PackageError if the
    description does not match the program.
    """
    versions = f"needs specification {VERSION}, the package has {spec.specificationVersion}"
    require(
        spec.specificationVersion >= VERSION,
        f"function {name}: op set {OPSET} {versions}",
        PackageError,
    )
    described = (entry for entry in spec.description.functions if entry.name == name)
    description = next(described, spec.description)
    for role, program in types.items():
        _compare(f"function {name}: {role}", getattr(description, role), program)
    return {
        feature.name: _narrowed(
            f"function {name}: input {feature.name}", types["input"][feature.name], feature.type
        )
        for feature in description.input
    }


def _compare(where: str, features: Any, program: Mapping[str, TensorType]) -> None:
    described = {feature.name: feature.type for feature in features}
    if described.keys() != program.keys():
        name = min(described.keys() ^ program.keys())
        place, other = ("description", "program") if name in described else ("program", "description")
        raise PackageError(f"{where} {name} is in the {place} and not in the {other}")
    for name, type in described.items():
        array = type.stateType.arrayType if type.HasField("stateType") else type.multiArrayType
        if ARRAY_TYPES.get(array.dataType) != program[name].scalar.name:
            found = ARRAY_TYPES.get(array.dataType, array.dataType)
            raise PackageError(f"{where} {name} is described as {found}, the program has {program[name]}")


def _narrowed(where: str, program: TensorType, described: Any) -> TensorType:
    """The type of an input with the sizes that both the program and its description permit."""
    array = described.multiArrayType
    flexibility, expected = array.WhichOneof("ShapeFlexibility"), "expected one shape or bounded sizes"
    require(flexibility != "enumeratedShapes", f"{where}: has a list of shapes, {expected}", UnsupportedError)
    ranges = [(axis.lowerBound, axis.upperBound) for axis in array.shapeRange.sizeRanges]
    require(
        all(high >= 0 for _, high in ranges), f"{where}: has unbounded sizes, {expected}", UnsupportedError
    )
    ranges = ranges or [(size, size) for size in array.shape] or list(program.sizes)
    require(len(ranges) == len(program.sizes), f"{where}: {len(ranges)} axes, {program}", PackageError)
    pairs = zip(ranges, program.sizes, strict=True)
    sizes = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in pairs)
    for axis, (low, high) in enumerate(sizes):
        least, most = ranges[axis]
        permitted = f"the description permits sizes from {least} to {most}, the program has {program}"
        require(low <= high, f"{where}: no size of axis {axis} is possible: {permitted}", PackageError)
    return TensorType(program.scalar, sizes)
