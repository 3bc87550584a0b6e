"""What a package says of its functions beside the program: sizes that inputs may have, and kinds of numbers. Core ML refuses what
lies outside, and a description that is not the program's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runtime.mil.errors import PackageError
from runtime.mil.types import TensorType

KINDS = {
    65552: "fp16",
    65568: "fp32",
    65600: "fp64",
    131080: "int8",
    131104: "int32",
}  # ArrayFeatureType.ArrayDataType
VERSIONS = {
    "CoreML5": 6,
    "CoreML6": 7,
    "CoreML7": 8,
    "CoreML8": 9,
}  # the first specification with an op set: iOS 15 to 18


@dataclass(frozen=True)
class Sizes:
    """Shapes that an input may have: a range for every axis (None: without end), or those that are listed."""

    ranges: tuple[tuple[int, int | None], ...]
    listed: tuple[tuple[int, ...], ...] = ()

    def fits(self, shape: tuple[int, ...]) -> bool:
        if self.listed:
            return shape in self.listed
        return len(shape) == len(self.ranges) and all(
            low <= size and (high is None or size <= high)
            for size, (low, high) in zip(shape, self.ranges, strict=True)
        )

    def __str__(self) -> str:
        if self.listed:
            return " or ".join(str(list(shape)) for shape in self.listed)
        return (
            "["
            + ", ".join(
                str(low) if low == high else f"{low}..{'' if high is None else high}"
                for low, high in self.ranges
            )
            + "]"
        )


def read_sizes(
    spec: Any,
    name: str,
    opset: str,
    inputs: Mapping[str, TensorType],
    states: Mapping[str, TensorType],
    outputs: Mapping[str, TensorType],
) -> dict[str, Sizes]:
    """Of every input whose description has them. Raises PackageError where the description is not that of the program."""
    if spec.specificationVersion < VERSIONS[opset]:
        raise PackageError(
            f"function {name}: op set {opset} needs specification {VERSIONS[opset]}, the package says {spec.specificationVersion}"
        )
    described = next(
        (function for function in spec.description.functions if function.name == name), spec.description
    )
    for what, features, program in (
        ("input", described.input, inputs),
        ("state", described.state, states),
        ("output", described.output, outputs),
    ):
        _compare(f"function {name}: {what}", features, program)
    return {feature.name: sizes for feature in described.input if (sizes := _sizes(feature.type)) is not None}


def _compare(where: str, features: Any, program: Mapping[str, TensorType]) -> None:
    named = {feature.name: feature.type for feature in features}
    if named.keys() != program.keys():
        odd = min(named.keys() ^ program.keys())
        raise PackageError(
            f"{where} {odd} is {'described, and not in the program' if odd in named else 'in the program, and not described'}"
        )
    for name, kind in named.items():
        array = kind.stateType.arrayType if kind.WhichOneof("Type") == "stateType" else kind.multiArrayType
        if (
            kind.WhichOneof("Type") in ("multiArrayType", "stateType")
            and KINDS.get(array.dataType) != program[name].scalar.name
        ):
            raise PackageError(
                f"{where} {name} is described as {KINDS.get(array.dataType, array.dataType)}, the program has {program[name]}"
            )


def _sizes(kind: Any) -> Sizes | None:
    if kind.WhichOneof("Type") != "multiArrayType":
        return None
    array = kind.multiArrayType
    if array.WhichOneof("ShapeFlexibility") == "enumeratedShapes":
        return Sizes((), tuple(tuple(shape.shape) for shape in array.enumeratedShapes.shapes))
    if array.WhichOneof("ShapeFlexibility") == "shapeRange":
        return Sizes(
            tuple(
                (size.lowerBound, size.upperBound if size.upperBound >= 0 else None)
                for size in array.shapeRange.sizeRanges
            )
        )
    return Sizes(tuple((size, size) for size in array.shape)) if array.shape else None
