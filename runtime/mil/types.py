"""Types of MIL values, and the permitted input shapes of a function.

Scalar types have the numbers of `MIL.proto` and their NumPy types. Core ML rejects inputs outside the
permitted shapes, and descriptions that do not match the program.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from voxport.runtime.mil.errors import PackageError, UnsupportedError, require

# The scalar type of an array is known only from the program, at run time: hence Any.
Array = npt.NDArray[Any]
Arrays = list[Array]
Ints = list[int]
# The parameters differ per operation, the result is an array or a list of arrays: hence Any.
Operator = Callable[..., Any]


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
BY_NAME = {scalar.name: scalar for scalar in SCALARS.values()}
# Values of ArrayFeatureType.ArrayDataType.
ARRAY_TYPES = {65552: "fp16", 65568: "fp32", 131104: "int32"}
OPSET, VERSION = "CoreML8", 9  # the op set of iOS 18 and the first specification version that includes it


@dataclass(frozen=True)
class TensorType:
    """A scalar type and a shape. A size is None if it is unknown before the call."""

    scalar: ScalarType
    shape: tuple[int | None, ...]

    @property
    def fixed(self) -> tuple[int, ...] | None:
        """The shape if every size is known, otherwise None."""
        sizes = tuple(size for size in self.shape if size is not None)
        return sizes if len(sizes) == len(self.shape) else None

    def fits(self, shape: tuple[int, ...]) -> bool:
        return self.shape == shape or (
            len(shape) == len(self.shape)
            and all(declared in (None, size) for size, declared in zip(shape, self.shape, strict=True))
        )

    def __str__(self) -> str:
        sizes = ("?" if size is None else str(size) for size in self.shape)
        return f"{self.scalar.name}[{', '.join(sizes)}]"


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
    shape = tuple(
        size.constant.size if size.WhichOneof("dimension") == "constant" else None
        for size in tensor.dimensions
    )
    require(
        len(shape) <= MAX_RANK and prod(size for size in shape if size) <= MAX_VALUES,
        f"a tensor of {len(shape)} axes {list(shape[:8])}",
        UnsupportedError,
    )
    return TensorType(SCALARS[tensor.dataType], shape)


@dataclass(frozen=True)
class AllowedShapes:
    """Permitted shapes of an input: one range (low, high) per axis."""

    ranges: tuple[tuple[int, int], ...]

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.ranges) and all(
            low <= size <= high for size, (low, high) in zip(shape, self.ranges, strict=True)
        )

    def __str__(self) -> str:
        axes = (str(low) if low == high else f"{low}..{high}" for low, high in self.ranges)
        return f"[{', '.join(axes)}]"


# `spec`, `features` and `type` are protobuf messages of coremltools, which have no type stubs: hence Any.
def read_allowed_shapes(
    spec: Any, name: str, types: Mapping[str, Mapping[str, TensorType]]
) -> dict[str, AllowedShapes]:
    """Permitted shapes of the inputs of a function that have them in the description of the package.

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
    shapes = {
        feature.name: _allowed_shapes(f"function {name}: input {feature.name}", feature.type)
        for feature in description.input
    }
    return {name: allowed for name, allowed in shapes.items() if allowed is not None}


def _compare(where: str, features: Any, program: Mapping[str, TensorType]) -> None:
    described = {feature.name: feature.type for feature in features}
    if described.keys() != program.keys():
        name = min(described.keys() ^ program.keys())
        place, other = ("description", "program") if name in described else ("program", "description")
        raise PackageError(f"{where} {name} is in the {place} and not in the {other}")
    for name, type in described.items():
        form = type.WhichOneof("Type")
        if form not in ("multiArrayType", "stateType"):
            continue
        array = type.stateType.arrayType if form == "stateType" else type.multiArrayType
        if ARRAY_TYPES.get(array.dataType) != program[name].scalar.name:
            found = ARRAY_TYPES.get(array.dataType, array.dataType)
            raise PackageError(f"{where} {name} is described as {found}, the program has {program[name]}")


def _allowed_shapes(where: str, type: Any) -> AllowedShapes | None:
    if type.WhichOneof("Type") != "multiArrayType":
        return None
    array = type.multiArrayType
    flexibility = array.WhichOneof("ShapeFlexibility")
    expected = "expected one shape or a bounded range of sizes"
    require(flexibility != "enumeratedShapes", f"{where}: has a list of shapes, {expected}", UnsupportedError)
    if flexibility == "shapeRange":
        ranges = array.shapeRange.sizeRanges
        is_bounded = all(axis.upperBound >= 0 for axis in ranges)
        require(is_bounded, f"{where}: has unbounded sizes, {expected}", UnsupportedError)
        return AllowedShapes(tuple((axis.lowerBound, axis.upperBound) for axis in ranges))
    return AllowedShapes(tuple((size, size) for size in array.shape)) if array.shape else None
