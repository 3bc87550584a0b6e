"""Programs of a kind that no export emits are refused by name."""

# coremltools has no types.
# mypy: disable-error-code="untyped-decorator"

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coremltools as ct
import pytest
from coremltools.converters.mil import Builder as mb
from support.runtime.mil_packages import edit, save

from voxport.runtime.mil import Package, UnsupportedError


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


def unknown_rank(spec: Any) -> None:
    block = spec.mlProgram.functions["main"].block_specializations["CoreML8"]
    kind = block.operations[-1].outputs[0].type.tensorType
    del kind.dimensions[:]
    kind.dimensions.add().unknown.variadic = True


def listed_shapes(spec: Any) -> None:
    spec.description.input[0].type.multiArrayType.enumeratedShapes.shapes.add().shape.extend((2, 16))


def unbounded_shape(spec: Any) -> None:
    ranges = spec.description.input[0].type.multiArrayType.shapeRange.sizeRanges
    for low, high in ((1, -1), (16, 16)):
        ranges.add(lowerBound=low, upperBound=high)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (unknown_rank, "a tensor of unknown rank"),
        (listed_shapes, "function main: input x: has a list of shapes, expected one"),
        (unbounded_shape, "function main: input x: has unbounded sizes, expected one"),
    ],
)
def test_shapes_that_no_export_has_are_refused(
    package: Path, tmp_path: Path, change: Callable[[Any], object], message: str
) -> None:
    path = Path(shutil.copytree(package, tmp_path / "copy.mlpackage"))
    edit(path, change)
    with pytest.raises(UnsupportedError, match=message):
        Package(path).function()
