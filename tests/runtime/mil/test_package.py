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
from support.runtime.mil_packages import MODEL, WEIGHTS, edit, main_block, operation, run, save

from runtime.mil import (
    CallError,
    Executor,
    Package,
    PackageError,
    UnsupportedError,
    describe,
    describe_text,
)


def test_a_package_runs_and_is_described(package: Path) -> None:
    # 24 quotients and 23 additions of them, each off by up to 2^-24 of the sum
    np.testing.assert_allclose(run(package).sum(-1), 1, rtol=47 * 2**-24)
    text = describe_text(describe(Package(package)))
    assert (
        "function main (default), op set CoreML8" in text and "1 linear" in text and "fp32, plain: " in text
    )


@mb.program(input_specs=[mb.TensorSpec((1,))], opset_version=ct.target.iOS18)
def branch(x: Any) -> Any:
    positive = mb.squeeze(x=mb.greater(x=x, y=0.0))
    return mb.cond(pred=positive, _true_fn=lambda: mb.tanh(x=x), _false_fn=lambda: mb.abs(x=x), name="y")


@mb.program(input_specs=[mb.TensorSpec((1,))], opset_version=ct.target.iOS18)
def loop(x: Any) -> Any:
    return mb.while_loop(
        _cond=lambda i, y: mb.less(x=i, y=3),
        _body=lambda i, y: (mb.add(x=i, y=1), mb.tanh(x=y)),
        loop_vars=(0, x),
        name="y",
    )[1]


@pytest.mark.parametrize(("program", "name"), [(branch, "cond"), (loop, "while_loop")])
def test_branches_and_loops_are_refused_by_name(program: Any, name: str, tmp_path: Path) -> None:
    path = save(program, tmp_path / "nested.mlpackage")
    with pytest.raises(UnsupportedError, match=rf"operation \d+ \({name}\): has nested blocks"):
        Package(path).function()


@pytest.mark.parametrize("target", [ct.target.iOS16, ct.target.iOS17])
def test_an_older_op_set_is_refused(target: Any, tmp_path: Path) -> None:
    @mb.program(input_specs=[mb.TensorSpec((1,))], opset_version=target)
    def program(x: Any) -> Any:
        return mb.tanh(x=x, name="y")

    ct.convert(program, minimum_deployment_target=target, skip_model_load=True).save(
        str(tmp_path / "older.mlpackage")
    )
    with pytest.raises(UnsupportedError, match=r"op set 'CoreML[67]'; expected CoreML8"):
        Package(tmp_path / "older.mlpackage").function()


def declare(spec: Any, index: int, kind: int) -> None:
    main_block(spec).operations[index].outputs[0].type.tensorType.dataType = kind


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
        (
            lambda spec: operation(spec, "tanh").inputs["x"].arguments[0].__setattr__("name", "x"),
            "operands of type fp32, declared result fp16",
        ),
        (
            lambda spec: declare(spec, places(spec, "add")[0], 21),
            "operands of type int32, declared result int8",
        ),
        (
            lambda spec: (
                main_block(spec)
                .operations[places(spec, "add")[-1]]
                .inputs["y"]
                .arguments[0]
                .__setattr__("name", half_of(spec))
            ),
            "operands of types fp16 and fp32",
        ),
        (lambda spec: main_block(spec).operations.insert(0, operation(spec, "const")), "a second time"),
        (
            lambda spec: spec.mlProgram.functions["main"].inputs.append(
                spec.mlProgram.functions["main"].inputs[0]
            ),
            "has two inputs x",
        ),
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


def half_of(spec: Any) -> Any:
    return operation(spec, "tanh").outputs[0].name


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
