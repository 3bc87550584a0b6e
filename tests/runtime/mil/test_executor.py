"""Memory, half-precision rounding and permitted shapes of the executor."""

# coremltools has no types.
# mypy: disable-error-code="untyped-decorator"

import contextlib
import tracemalloc
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import get_new_symbol, types
from support.runtime.mil_packages import save
from support.stand_ins import noting

from voxport.runtime.mil import CallError, Executor, Package, describe, describe_text
from voxport.runtime.mil.executor import CHUNK, round_to_float16


def test_half_precision_rounds_results_declared_as_half(tmp_path: Path) -> None:
    @mb.program(input_specs=[mb.TensorSpec((4,), dtype=types.fp32)], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        in_float16 = mb.mul(x=mb.cast(x=x, dtype="fp16"), y=np.float16(1.001))
        return mb.add(x=mb.cast(x=in_float16, dtype="fp32"), y=np.float32(1e-5), name="y")

    function, x = (
        Package(save(program, tmp_path / "half.mlpackage")).function(),
        np.array([1.0, 0.1, 70000, 3e-8], np.float32),
    )
    with np.errstate(over="ignore"):
        rounded = (x.astype(np.float16) * np.float16(1.001)).astype(np.float32) + np.float32(1e-5)
    np.testing.assert_array_equal(Executor(function, "float16").run({"x": x})["y"], rounded)
    exact = x * np.float32(np.float16(1.001)) + np.float32(1e-5)
    np.testing.assert_array_equal(Executor(function, "float32").run({"x": x})["y"], exact)


@pytest.mark.parametrize(("factor", "rounded"), [(1.5, False), (1.5 + 2**-9, True), (2.0**-15, True)])
def test_weights_that_are_exact_in_half_precision_are_not_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, rounded: bool
) -> None:
    """int4 times an 8-bit scale fits the 11 bits of float16. A 10-bit scale or subnormal result does not."""
    integers, scale = np.tile(np.arange(-8, 8, dtype=np.int8), (3, 1)), np.full((3, 1), factor, np.float16)

    @mb.program(input_specs=[mb.TensorSpec((16, 16), dtype=types.fp16)], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        return mb.linear(
            x=x,
            weight=mb.constexpr_blockwise_shift_scale(data=integers.astype(types.np_int4_dtype), scale=scale),
            name="y",
        )

    calls = []
    monkeypatch.setattr(
        "voxport.runtime.mil.executor.round_to_float16",
        noting(round_to_float16, lambda array, in_place=False: calls.append(in_place)),
    )
    executor = Executor(Package(save(program, tmp_path / "weight.mlpackage")).function())
    expected = (integers * scale.astype(np.float32)).astype(np.float16).T
    np.testing.assert_array_equal(executor.run({"x": np.eye(16, dtype=np.float16)})["y"], expected)
    assert (True in calls) == rounded


def test_values_are_freed_after_their_last_use(tmp_path: Path) -> None:
    """A chain of 200 values of 4 MB, two of which are used again at the end, needs 8 of them at a time."""

    @mb.program(input_specs=[mb.TensorSpec((1024, 1024))], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        y = kept = mb.sin(x=x)
        for _ in range(200):
            y = mb.sin(x=y)
        return mb.add(x=mb.add(x=y, y=kept), y=x, name="y")

    executor = Executor(Package(save(program, tmp_path / "chain.mlpackage")).function(), "float32")
    x = np.random.default_rng(0).random((1024, 1024), np.float32)
    expected = last = np.sin(x)
    for _ in range(200):
        last = np.sin(last)
    tracemalloc.start()
    found = executor.run({"x": x})["y"]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(found, last + expected + x)
    assert peak < 8 * x.nbytes


def test_rounding_to_float16_equals_numpy() -> None:
    """Values next to the boundaries of all float16 values, and values between them, of every exponent."""
    bits = np.arange(0, 2**32, 4096 - 1, dtype=np.uint64).astype(np.uint32)
    edges = (
        (np.arange(2**19, dtype=np.uint64)[:, None] * 2**13 + np.array([0, 1, 4095, 4096, 4097, 8191]))
        .astype(np.uint32)
        .ravel()
    )
    for part in (bits, edges):
        x = part.view(np.float32)
        x = x[np.isfinite(x) & (np.abs(x) < 65520)]
        np.testing.assert_array_equal(
            round_to_float16(x).view(np.uint32), x.astype(np.float16).astype(np.float32).view(np.uint32)
        )
    for size in (0, 1, 255, 256, 257):
        x = np.linspace(-1, 1, size, dtype=np.float32) / 3
        np.testing.assert_array_equal(round_to_float16(x), x.astype(np.float16).astype(np.float32))
    with np.errstate(over="ignore"):
        for odd in (np.inf, -np.inf, np.nan, 65520.0):
            x = np.append(np.full(CHUNK + 1, 1 + 2**-11, np.float32), np.float32(odd))
            np.testing.assert_array_equal(round_to_float16(x), x.astype(np.float16).astype(np.float32))


def test_shapes_outside_the_description_raise(tmp_path: Path) -> None:
    @mb.program(
        input_specs=[mb.TensorSpec((get_new_symbol(), 4)), mb.TensorSpec((7, 4))],
        opset_version=ct.target.iOS18,
    )
    def program(x: Any, y: Any) -> Any:
        return mb.tanh(x=x, name="a"), mb.tanh(x=y, name="b")

    shapes = [ct.TensorType("x", ct.Shape((ct.RangeDim(2, 5), 4))), ct.TensorType("y", (7, 4))]
    ct.convert(
        program,
        inputs=shapes,
        minimum_deployment_target=ct.target.iOS18,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    ).save(str(tmp_path / "sizes.mlpackage"))
    package = Package(tmp_path / "sizes.mlpackage")
    text = describe_text(describe(package))
    assert "x fp32[2..5, 4]" in text and "y fp32[7, 4]" in text
    executor = Executor(package.function())
    for x, y, expected in (
        (5, 7, None),
        (6, 7, "input x is float32.6, 4., expected fp32.2..5, 4."),
        (2, 3, "input y is float32.3, 4., expected fp32.7, 4."),
    ):
        inputs = {"x": np.zeros((x, 4), np.float32), "y": np.zeros((y, 4), np.float32)}
        with pytest.raises(CallError, match=expected) if expected else contextlib.nullcontext():
            assert executor.run(inputs)["a"].shape == (x, 4)
