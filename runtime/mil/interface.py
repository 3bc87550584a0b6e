"""The interface of a function: types from the program, permitted input shapes from the package's description.

Core ML rejects inputs outside the permitted shapes, and descriptions that do not match the program.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.mil.errors import PackageError
from runtime.mil.types import TensorType

# Values of ArrayFeatureType.ArrayDataType.
ARRAY_TYPES = {65552: "fp16", 65568: "fp32", 65600: "fp64", 131080: "int8", 131104: "int32"}
# Op set -> first specification version that includes it (iOS 15 to 18).
VERSIONS = {"CoreML5": 6, "CoreML6": 7, "CoreML7": 8, "CoreML8": 9}


@dataclass(frozen=True)
class AllowedShapes:
    """Permitted shapes of an input: a list of shapes, or one range (low, high) per axis.

    An unbounded range has `high` None.
    """

    ranges: tuple[tuple[int, int | None], ...]
    enumerated: tuple[tuple[int, ...], ...] = ()

    def fits(self, shape: tuple[int, ...]) -> bool:
        if self.enumerated:
            return shape in self.enumerated
        return len(shape) == len(self.ranges) and all(
            low <= size and (high is None or size <= high)
            for size, (low, high) in zip(shape, self.ranges, strict=True)
        )

    def __str__(self) -> str:
        if self.enumerated:
            return " or ".join(str(list(shape)) for shape in self.enumerated)
        axes = (
            str(low) if low == high else f"{low}..{'' if high is None else high}" for low, high in self.ranges
        )
        return f"[{', '.join(axes)}]"


@dataclass(frozen=True)
class Interface:
    """Name, op set and declared types of a function."""

    name: str
    opset: str
    inputs: dict[str, TensorType]
    states: dict[str, TensorType]
    outputs: dict[str, TensorType]


# `spec`, `features` and `type` are protobuf messages of coremltools, which have no type stubs: hence Any.
def read_allowed_shapes(spec: Any, function: Interface) -> dict[str, AllowedShapes]:
    """Permitted shapes of the inputs that have them in the description of the package.

    Raises PackageError if the description does not match the program.
    """
    name, expected, found = function.name, VERSIONS[function.opset], spec.specificationVersion
    if found < expected:
        versions = f"needs specification {expected}, the package has {found}"
        raise PackageError(f"function {name}: op set {function.opset} {versions}")
    description = next(
        (entry for entry in spec.description.functions if entry.name == name), spec.description
    )
    _compare(f"function {name}: input", description.input, function.inputs)
    _compare(f"function {name}: state", description.state, function.states)
    _compare(f"function {name}: output", description.output, function.outputs)
    shapes = {feature.name: _allowed_shapes(feature.type) for feature in description.input}
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


def _allowed_shapes(type: Any) -> AllowedShapes | None:
    if type.WhichOneof("Type") != "multiArrayType":
        return None
    array = type.multiArrayType
    flexibility = array.WhichOneof("ShapeFlexibility")
    if flexibility == "enumeratedShapes":
        return AllowedShapes((), tuple(tuple(shape.shape) for shape in array.enumeratedShapes.shapes))
    if flexibility == "shapeRange":
        ranges = array.shapeRange.sizeRanges
        return AllowedShapes(
            tuple((axis.lowerBound, axis.upperBound if axis.upperBound >= 0 else None) for axis in ranges)
        )
    return AllowedShapes(tuple((size, size) for size in array.shape)) if array.shape else None
