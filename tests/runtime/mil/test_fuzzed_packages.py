"""Packages with damaged bytes give a result or a MilError, and no other exception."""

# coremltools has no types.
# mypy: disable-error-code="untyped-decorator"

import shutil
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from hypothesis import given, settings
from hypothesis import strategies as st
from support.runtime.mil_packages import MODEL, WEIGHTS, save

from voxport.runtime.mil import Executor, MilError, Package, describe, describe_text
from voxport.runtime.mil.types import BY_NAME
from voxport.runtime.mil.weights import unpack


def stateful_program() -> Any:
    rng = np.random.default_rng(0)

    @mb.program(
        input_specs=[mb.TensorSpec((2, 16)), mb.StateTensorSpec((2, 16), dtype=types.fp16)],
        opset_version=ct.target.iOS18,
    )
    def program(x: Any, total: Any) -> Any:
        integers, scale = (
            rng.integers(-8, 8, (24, 16)).astype(types.np_int4_dtype),
            rng.random((24, 2), np.float32).astype(np.float16),
        )
        weight = mb.constexpr_blockwise_shift_scale(data=integers, scale=scale)
        table = mb.constexpr_lut_to_dense(
            indices=rng.integers(0, 16, (16, 24)).astype(types.np_uint4_dtype),
            lut=rng.random((1, 1, 16, 1)).astype(np.float16),
        )
        now = mb.add(x=mb.read_state(input=total), y=mb.cast(x=x, dtype="fp16"))
        mb.coreml_update_state(state=total, value=now)
        return mb.cast(
            x=mb.matmul(x=mb.linear(x=now, weight=weight), y=table, transpose_y=True), dtype="fp32", name="y"
        )

    return program


@pytest.fixture(scope="module")
def varied(package: Path, typed: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Packages with compressed weights, states and several functions."""
    folder = tmp_path_factory.mktemp("varied")
    two = ct.utils.MultiFunctionDescriptor()
    for name in ("first", "second"):
        two.add_function(str(package), "main", name)
    two.default_function_name = "first"
    ct.utils.save_multifunction(two, str(folder / "two.mlpackage"))
    return [
        package,
        typed,
        folder / "two.mlpackage",
        save(stateful_program(), folder / "held.mlpackage", ct.precision.FLOAT16),
    ]


def describe_and_run(folder: Path) -> None:
    """Describes the package and runs each of its functions."""
    package = Package(folder)
    describe_text(describe(package))
    for name in package.function_names:
        executor = Executor(package.function(name))
        inputs = {
            key: np.ones(type.fixed or (2, 16), type.scalar.dtype)
            for key, type in executor.function.inputs.items()
        }
        executor.run(inputs, executor.new_states())


def test_the_fuzzed_packages_run_without_damage(varied: list[Path]) -> None:
    for path in varied:
        describe_and_run(path)


@settings(max_examples=400)
@given(st.data())
def test_damaged_bytes_give_a_result_or_a_mil_error(
    varied: list[Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "fuzz.mlpackage"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(data.draw(st.sampled_from(varied)), folder)
    target = folder / data.draw(
        st.sampled_from([MODEL, MODEL, WEIGHTS if (folder / WEIGHTS).exists() else MODEL, "Manifest.json"])
    )
    content = bytearray(target.read_bytes())
    if data.draw(st.booleans()):
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    target.write_bytes(content)
    try:
        describe_and_run(folder)
    except MilError as error:
        assert str(error)


@given(st.lists(st.integers(-8, 7), max_size=40), st.booleans())
def test_unpacked_nibbles_equal_the_packed_numbers(numbers: list[int], signed: bool) -> None:
    numbers = numbers if signed else [number + 8 for number in numbers]
    packed = sum((number & 15) << (4 * place) for place, number in enumerate(numbers))
    content, scalar = packed.to_bytes(-(-len(numbers) // 2), "little"), BY_NAME["int4" if signed else "uint4"]
    found = unpack(content, len(numbers), scalar)
    np.testing.assert_array_equal(found, np.array(numbers, np.int8))
