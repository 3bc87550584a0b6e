"""Packages are read and described; damaged or incomplete ones raise an error with its location."""

# coremltools has no types.
# mypy: disable-error-code="untyped-decorator"

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb
from support.runtime.mil_packages import MODEL, WEIGHTS, edit

from voxport.runtime.mil import (
    CallError,
    Executor,
    MilError,
    Package,
    PackageError,
    UnsupportedError,
    describe,
    describe_text,
)

UINT16, FLOAT16 = 32, 65552  # data types of a program and of its description


@pytest.fixture
def copy(package: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(package, tmp_path / "copy.mlpackage"))


def run(path: Path) -> np.ndarray:
    executor = Executor(Package(path).function())
    return executor.run({"x": np.ones((2, 16), np.float32)}, executor.new_states())["y"]


def main_block(spec: Any) -> Any:
    return main_function(spec).block_specializations["CoreML8"]


def main_function(spec: Any) -> Any:
    return spec.mlProgram.functions["main"]


def operation(spec: Any, kind: str) -> Any:
    return next(op for op in main_block(spec).operations if op.type == kind)


def test_a_package_runs_and_is_described(package: Path) -> None:
    # 24 quotients and 23 additions of them, each off by up to 2^-24 of the sum
    np.testing.assert_allclose(run(package).sum(-1), 1, rtol=47 * 2**-24)
    text = describe_text(describe(Package(package)))
    assert (
        "function main (default), op set CoreML8" in text and "1 linear" in text and "fp32, plain: " in text
    )


def declare(spec: Any, index: int, kind: int) -> None:
    main_block(spec).operations[index].outputs[0].type.tensorType.dataType = kind


def put(find: Callable[[Any], Any], name: str, value: object) -> Callable[[Any], None]:
    return lambda spec: setattr(find(spec), name, value)


def tanh_input(spec: Any) -> Any:
    return operation(spec, "tanh").inputs["x"].arguments[0]


def mixed_sum(spec: Any) -> None:
    last = main_block(spec).operations[places(spec, "add")[-1]]
    last.inputs["y"].arguments[0].name = operation(spec, "tanh").outputs[0].name


def places(spec: Any, kind: str) -> list[Any]:
    return [index for index, op in enumerate(main_block(spec).operations) if op.type == kind]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda spec: string(spec, "fp16").__setitem__(0, "fp32"),
            "input dtype is fp32, the declared result is fp16",
        ),
        (
            lambda spec: declare(spec, places(spec, "tanh")[0], 11),
            "operands of type fp16, declared result fp32",
        ),
        (put(tanh_input, "name", "x"), "operands of type fp32, declared result fp16"),
        (
            lambda spec: declare(spec, places(spec, "add")[0], 21),
            "operands of type int32, declared result int8",
        ),
        (mixed_sum, "operands of types fp16 and fp32"),
        (lambda spec: main_block(spec).operations.insert(0, operation(spec, "const")), "a second time"),
        (lambda spec: main_function(spec).inputs.append(main_function(spec).inputs[0]), "has two inputs x"),
    ],
)
def test_contradictory_types_and_names_raise(
    typed: Path, tmp_path: Path, change: Callable[[Any], object], message: str
) -> None:
    path = Path(shutil.copytree(typed, tmp_path / "typed.mlpackage"))
    edit(path, change)
    with pytest.raises(PackageError, match=message):
        Executor(Package(path).function()).run({"x": np.ones(2, np.float32)})


def string(spec: Any, value: str) -> Any:
    consts = [
        op.attributes["val"].immediateValue.tensor.strings.values
        for op in main_block(spec).operations
        if op.type == "const"
    ]
    return next(held for held in consts if list(held) == [value])


def test_a_path_that_is_not_a_package_raises(package: Path, tmp_path: Path) -> None:
    for path, message in (
        (tmp_path / "none", "not a package; expected a folder .mlpackage$"),
        (package / MODEL, "such as .*small.mlpackage$"),
        (package.parent, "such as small.mlpackage in this folder"),
    ):
        with pytest.raises(CallError, match=message):
            Package(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / "Manifest.json").write_text("{"), "does not name the model file"),
        (
            lambda path: (path / "Manifest.json").write_text(
                '{"rootModelIdentifier": "a", "itemInfoEntries": {"a": {"path": "../../x"}}}'
            ),
            "not a path inside",
        ),
        (lambda path: (path / MODEL).unlink(), "model.mlmodel: cannot be read"),
        (lambda path: (path / MODEL).write_bytes(b"\xff" * 40), "not a Core ML specification"),
        (lambda path: (path / WEIGHTS).unlink(), "weight.bin: cannot be read"),
        (
            lambda path: (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:700]),
            "outside the file of 700 bytes",
        ),
        (lambda path: (path / WEIGHTS).write_bytes(b""), "not a weight file"),
        (lambda path: (path / WEIGHTS).write_bytes(bytes(2000)), "not a weight file of version 2"),
        (
            lambda path: edit(path, lambda spec: spec.neuralNetwork.layers.add()),
            "contains neuralNetwork, expected an ML program",
        ),
        (lambda path: edit(path, lambda spec: spec.mlProgram.functions.clear()), "has no function"),
    ],
)
def test_a_damaged_package_raises(copy: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(copy)
    with pytest.raises(PackageError, match=message):
        run(copy)


def blob(spec: Any) -> Any:
    values = [op.attributes["val"] for op in main_block(spec).operations if op.type == "const"]
    return next(value.blobFileValue for value in values if value.WhichOneof("value") == "blobFileValue")


def softmax(spec: Any) -> Any:
    return operation(spec, "softmax")


def softmax_input(spec: Any) -> Any:
    return softmax(spec).inputs["x"].arguments[0]


def softmax_type(spec: Any) -> Any:
    return softmax(spec).outputs[0].type.tensorType


def linear_type(spec: Any) -> Any:
    return operation(spec, "linear").outputs[0].type.tensorType


def linear_columns(spec: Any) -> Any:
    return linear_type(spec).dimensions[1].constant


def more_inputs(spec: Any) -> None:
    softmax(spec).inputs["sharpness"].CopyFrom(softmax(spec).inputs["axis"])


def another_attribute(spec: Any) -> None:
    softmax(spec).attributes["axis"].CopyFrom(operation(spec, "const").attributes["val"])


def axis_of(spec: Any) -> Any:
    name = operation(spec, "softmax").inputs["axis"].arguments[0].name
    return next(op for op in main_block(spec).operations if op.outputs[0].name == name).attributes["val"]


def axis_type(spec: Any) -> Any:
    return axis_of(spec).type.tensorType


def hold(field: str, *values: str | float) -> Callable[[Any], None]:
    def change(spec: Any) -> None:
        tensor = axis_of(spec).immediateValue.tensor
        tensor.ClearField("value")
        getattr(tensor, field).values.extend(values)

    return change


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


def described_input(spec: Any) -> Any:
    return spec.description.input[0]


def extra_output(spec: Any) -> None:
    spec.description.output.add(name="w")


def unknown_rank(spec: Any) -> None:
    kind = operation(spec, "softmax").outputs[0].type.tensorType
    del kind.dimensions[:]
    kind.dimensions.add().unknown.variadic = True


def listed_shapes(spec: Any) -> None:
    described_input(spec).type.multiArrayType.enumeratedShapes.shapes.add().shape.extend((2, 16))


def described_sizes(*sizes: tuple[int, int]) -> Callable[[Any], None]:
    def change(spec: Any) -> None:
        for low, high in sizes:
            ranges = described_input(spec).type.multiArrayType.shapeRange.sizeRanges
            ranges.add(lowerBound=low, upperBound=high)

    return change


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (unknown_rank, UnsupportedError, "a tensor of unknown rank"),
        (listed_shapes, UnsupportedError, "input x: has a list of shapes, expected one"),
        (described_sizes((1, -1), (16, 16)), UnsupportedError, "input x: has unbounded sizes, expected one"),
        (
            described_sizes((2, 2), (37, 36)),
            PackageError,
            "axis 1 is possible: .* from 37 to 36, the",
        ),
        (put(described_input, "name", "z"), PackageError, "x is in the program and not in the description"),
        (extra_output, PackageError, "output w is in the description and not in the program"),
        (
            put(lambda spec: spec.description.output[0].type.multiArrayType, "dataType", FLOAT16),
            PackageError,
            "output y is described as fp16, the program has fp32",
        ),
        (
            put(lambda spec: spec, "specificationVersion", 8),
            PackageError,
            "op set CoreML8 needs specification 9, the package has 8",
        ),
        (put(blob, "offset", 10**9), PackageError, "is outside the file"),
        (put(blob, "offset", 128), PackageError, "not a blob descriptor"),
        (put(blob, "fileName", "/etc/passwd"), PackageError, "outside the package"),
        (put(blob, "fileName", "@model_path/../../../x"), PackageError, "not a path inside the package"),
        (
            put(softmax, "type", "hardmax"),
            UnsupportedError,
            r"operation \d \(hardmax\).*no operation hardmax",
        ),
        (another_attribute, UnsupportedError, "has unknown attribute 'axis'"),
        (hold("strings", "x"), PackageError, "stored as strings"),
        (hold("floats", float("nan")), PackageError, "stored as floats"),
        (
            put(lambda spec: axis_of(spec).type.tensorType, "dataType", UINT16),
            PackageError,
            "a number outside the range",
        ),
        (hold("ints", 0, 1), PackageError, "has 2 values"),
        (oversized_shape(0, 2**63 - 1), UnsupportedError, "a tensor of 2 axes"),
        (oversized_shape(*[1] * 70), UnsupportedError, "a tensor of 70 axes"),
        (oversized_state, PackageError, "state s: fp16.2147483648. has no fixed shape or more than"),
        (lambda spec: operation(spec, "const").outputs.pop(), PackageError, "declares no output"),
        (lambda spec: operation(spec, "const").attributes.pop("val"), PackageError, "has no value"),
        (put(main_function, "opset", "CoreML99"), UnsupportedError, "op set 'CoreML99'"),
        (more_inputs, UnsupportedError, "no input 'sharpness'"),
        (lambda spec: operation(spec, "softmax").inputs.pop("x"), UnsupportedError, "input 'x' is missing"),
        (lambda spec: main_block(spec).outputs.append("z"), PackageError, "output z is not defined"),
        (put(softmax_input, "name", "nothing"), PackageError, "uses nothing, which is not defined before it"),
        (put(softmax_type, "dataType", 77), UnsupportedError, "data type 77; expected one of bool, string"),
        (put(linear_columns, "size", 23), MilError, r"result has shape \[2, 24\]"),
        (put(linear_type, "dataType", 23), PackageError, "operands of type fp32, declared result int32"),
    ],
)
def test_an_invalid_program_raises_with_its_location(
    copy: Path, change: Callable[[Any], object], error: type[MilError], message: str
) -> None:
    edit(copy, change)
    with pytest.raises(error, match=message):
        run(copy)


@mb.program(input_specs=[mb.TensorSpec((1,))], opset_version=ct.target.iOS18)
def branch(x: Any) -> Any:
    positive = mb.squeeze(x=mb.greater(x=x, y=0.0))
    return mb.cond(pred=positive, _true_fn=lambda: mb.tanh(x=x), _false_fn=lambda: mb.abs(x=x), name="y")


@mb.program(input_specs=[mb.TensorSpec((1,))], opset_version=ct.target.iOS17)
def older(x: Any) -> Any:
    return mb.tanh(x=x, name="y")


@pytest.mark.parametrize(
    ("program", "target", "message"),
    [
        (branch, ct.target.iOS18, r"operation \d+ \(cond\): has nested blocks"),
        (older, ct.target.iOS17, "op set 'CoreML7'; expected CoreML8"),
    ],
)
def test_programs_of_a_kind_that_no_export_emits_are_refused(
    program: Any, target: Any, message: str, tmp_path: Path
) -> None:
    model = ct.convert(program, minimum_deployment_target=target, skip_model_load=True)
    model.save(str(tmp_path / "other.mlpackage"))
    with pytest.raises(UnsupportedError, match=message):
        Package(tmp_path / "other.mlpackage").function()
