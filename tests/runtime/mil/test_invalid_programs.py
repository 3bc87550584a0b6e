"""Programs that are damaged or contradict themselves raise an error with its location."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.runtime.mil_packages import edit, main_block, operation, run

from runtime.mil import (
    MilError,
    Package,
    PackageError,
    UnsupportedError,
    describe,
    describe_text,
)


def blob(spec: Any) -> Any:
    values = [op.attributes["val"] for op in main_block(spec).operations if op.type == "const"]
    return next(value.blobFileValue for value in values if value.WhichOneof("value") == "blobFileValue")


def size_of(op: Any, axis: int) -> Any:
    return op.outputs[0].type.tensorType.dimensions[axis].constant


def more_inputs(spec: Any) -> None:
    softmax = operation(spec, "softmax")
    softmax.inputs["sharpness"].CopyFrom(softmax.inputs["axis"])


def another_attribute(spec: Any) -> None:
    operation(spec, "softmax").attributes["axis"].CopyFrom(operation(spec, "const").attributes["val"])


def axis_of(spec: Any) -> Any:
    name = operation(spec, "softmax").inputs["axis"].arguments[0].name
    return next(op for op in main_block(spec).operations if op.outputs[0].name == name).attributes["val"]


def hold(field: str, *values: str | float) -> Callable[[Any], None]:
    def change(spec: Any) -> None:
        tensor = axis_of(spec).immediateValue.tensor
        tensor.ClearField("value")
        getattr(tensor, field).values.extend(values)

    return change


def negative_unsigned(spec: Any) -> None:
    axis_of(spec).type.tensorType.dataType = 32  # uint16


def unknown_rank(spec: Any) -> None:
    kind = operation(spec, "softmax").outputs[0].type.tensorType
    del kind.dimensions[:]
    kind.dimensions.add().unknown.variadic = True


def listed_shapes(spec: Any) -> None:
    spec.description.input[0].type.multiArrayType.enumeratedShapes.shapes.add().shape.extend((2, 16))


def unbounded_shape(spec: Any) -> None:
    ranges = spec.description.input[0].type.multiArrayType.shapeRange.sizeRanges
    for low, high in ((1, -1), (16, 16)):
        ranges.add(lowerBound=low, upperBound=high)


def oversized_shape(*sizes: int) -> Callable[[Any], None]:
    def change(spec: Any) -> None:
        kind = operation(spec, "softmax").outputs[0].type.tensorType
        del kind.dimensions[:]
        for size in sizes:
            kind.dimensions.add().constant.size = size

    return change


def oversized_state(spec: Any) -> None:
    state = spec.mlProgram.functions["main"].inputs.add(name="s")
    kind = state.type.stateType.wrappedType.tensorType
    kind.dataType = 10
    kind.dimensions.add().constant.size = 2**31
    described = spec.description.state.add(name="s")
    described.type.stateType.arrayType.dataType = 65552
    described.type.stateType.arrayType.shape.append(2**31)


def another_argument(spec: Any) -> None:
    operation(spec, "softmax").inputs["x"].arguments[0].name = "nothing"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda spec: setattr(blob(spec), "offset", 10**9), PackageError, "is outside the file"),
        (lambda spec: setattr(blob(spec), "offset", 128), PackageError, "not a blob descriptor"),
        (lambda spec: setattr(blob(spec), "fileName", "/etc/passwd"), PackageError, "outside the package"),
        (
            lambda spec: setattr(blob(spec), "fileName", "@model_path/../../../x"),
            PackageError,
            "not a path inside the package",
        ),
        (
            lambda spec: setattr(operation(spec, "softmax"), "type", "hardmax"),
            UnsupportedError,
            r"operation \d \(hardmax\).*no operation hardmax",
        ),
        (another_attribute, UnsupportedError, "has unknown attribute 'axis'"),
        (hold("strings", "x"), PackageError, "stored as strings"),
        (hold("doubles", 0.5), PackageError, "stored as doubles"),
        (hold("floats", float("nan")), PackageError, "stored as floats"),
        (hold("longInts", 0), PackageError, "stored as longInts"),
        (negative_unsigned, PackageError, "a number outside the range"),
        (hold("ints", 0, 1), PackageError, "has 2 values"),
        (oversized_shape(0, 2**63 - 1), UnsupportedError, "a tensor of 2 axes"),
        (oversized_shape(*[1] * 70), UnsupportedError, "a tensor of 70 axes"),
        (oversized_state, PackageError, "state s: fp16.2147483648. has no fixed shape or more than"),
        (lambda spec: operation(spec, "const").outputs.pop(), PackageError, "declares no output"),
        (lambda spec: operation(spec, "const").attributes.pop("val"), PackageError, "has no value"),
        (
            lambda spec: setattr(spec.mlProgram.functions["main"], "opset", "CoreML99"),
            UnsupportedError,
            "op set 'CoreML99'",
        ),
        (more_inputs, UnsupportedError, "no input 'sharpness'"),
        (lambda spec: operation(spec, "softmax").inputs.pop("x"), UnsupportedError, "input 'x' is missing"),
        (
            lambda spec: main_block(spec).outputs.append("z"),
            PackageError,
            "output z is not defined",
        ),
        (another_argument, PackageError, "uses nothing, which is not defined before it"),
        (
            lambda spec: setattr(operation(spec, "softmax").outputs[0].type.tensorType, "dataType", 77),
            UnsupportedError,
            "data type 77; expected one of bool, string, fp16",
        ),
        (unknown_rank, UnsupportedError, "a tensor of unknown rank"),
        (listed_shapes, UnsupportedError, "an input with a list of shapes"),
        (unbounded_shape, UnsupportedError, "an input without largest sizes"),
        (
            lambda spec: setattr(size_of(operation(spec, "linear"), 1), "size", 23),
            MilError,
            r"result has shape \[2, 24\]",
        ),
        (
            lambda spec: setattr(operation(spec, "linear").outputs[0].type.tensorType, "dataType", 23),
            PackageError,
            "operands of type fp32, declared result int32",
        ),
    ],
)
def test_an_invalid_program_raises_with_its_location(
    copy: Path, change: Callable[[Any], object], error: type[MilError], message: str
) -> None:
    edit(copy, change)
    with pytest.raises(error, match=message):
        run(copy)
    with contextlib.suppress(MilError):  # any other error fails the test
        describe_text(describe(Package(copy)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda spec: setattr(spec.description.input[0], "name", "z"),
            "input x is in the program and not in the description",
        ),
        (
            lambda spec: spec.description.output.add(name="w"),
            "output w is in the description and not in the program",
        ),
        (
            lambda spec: setattr(spec.description.output[0].type.multiArrayType, "dataType", 65552),
            "output y is described as fp16, the program has fp32",
        ),
        (
            lambda spec: setattr(spec, "specificationVersion", 8),
            "op set CoreML8 needs specification 9, the package has 8",
        ),
    ],
)
def test_a_description_that_contradicts_the_program_raises(
    copy: Path, change: Callable[[Any], object], message: str
) -> None:
    edit(copy, change)
    with pytest.raises(PackageError, match=message):
        describe(Package(copy))


def test_describing_a_program_with_an_undefined_name_raises(copy: Path) -> None:
    edit(copy, another_argument)
    with pytest.raises(PackageError, match="uses nothing, which is not defined before it"):
        describe(Package(copy))
