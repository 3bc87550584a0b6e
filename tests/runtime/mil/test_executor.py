"""What the executor does beyond single operations: loops and branches, and rounding to half precision."""

import tracemalloc

import coremltools as ct
import numpy as np
import pytest
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from test_package import save

from runtime.mil import Executor, MilError, Package
from runtime.mil.executor import MOST_ITERATIONS, SMALL, round_to_half


def test_a_loop_runs_and_one_without_end_is_stopped(tmp_path, monkeypatch):
    def build(forever: bool):
        @mb.program(input_specs=[mb.TensorSpec((1,), dtype=types.int32)], opset_version=ct.target.iOS18)
        def program(x):
            def more(i, total):
                return mb.logical_or(x=mb.less(x=i, y=5), y=forever)

            def body(i, total):
                return mb.add(x=i, y=1), mb.add(x=total, y=mb.mul(x=x, y=i))

            total = mb.while_loop(_cond=more, _body=body, loop_vars=(0, x))[1]
            odd = mb.equal(x=mb.squeeze(x=mb.mod(x=x, y=2)), y=1)
            return mb.cond(
                pred=odd,
                _true_fn=lambda: mb.identity(x=total),
                _false_fn=lambda: mb.sub(x=total, y=1),
                name="y",
            )

        return save(program, tmp_path / f"loop{forever}.mlpackage")

    executor = Executor(Package(build(False)).function())
    assert executor.run({"x": np.array([3], np.int32)})["y"] == 3 + 3 * (0 + 1 + 2 + 3 + 4)
    assert executor.run({"x": np.array([4], np.int32)})["y"] == 4 + 4 * (0 + 1 + 2 + 3 + 4) - 1
    assert MOST_ITERATIONS >= 1000
    monkeypatch.setattr("runtime.mil.executor.MOST_ITERATIONS", 50)
    with pytest.raises(MilError, match="did not end after 50 iterations"):
        Executor(Package(build(True)).function()).run({"x": np.array([3], np.int32)})


def test_half_precision_rounds_where_the_program_says_so(tmp_path):
    @mb.program(input_specs=[mb.TensorSpec((4,), dtype=types.fp32)], opset_version=ct.target.iOS18)
    def program(x):
        half = mb.mul(x=mb.cast(x=x, dtype="fp16"), y=np.float16(1.001))
        return mb.add(x=mb.cast(x=half, dtype="fp32"), y=np.float32(1e-5), name="y")

    function, x = (
        Package(save(program, tmp_path / "half.mlpackage")).function(),
        np.array([1.0, 0.1, 70000, 3e-8], np.float32),
    )
    with np.errstate(over="ignore"):
        rounded = (x.astype(np.float16) * np.float16(1.001)).astype(np.float32) + np.float32(1e-5)
    np.testing.assert_array_equal(Executor(function, "float16").run({"x": x})["y"], rounded)
    exact = x * np.float32(np.float16(1.001)) + np.float32(1e-5)
    np.testing.assert_allclose(Executor(function, "float32").run({"x": x})["y"], exact, rtol=1e-6)


@pytest.mark.parametrize(("factor", "rounded"), [(1.5, False), (1.5 + 2**-9, True), (2.0**-15, True)])
def test_weights_that_are_halves_already_are_not_rounded_again(tmp_path, monkeypatch, factor, rounded):
    """4 bits and a scale of 8 significant ones make 11 at most; one of 10 makes more, and the smallest halves have fewer."""
    integers, scale = np.tile(np.arange(-8, 8, dtype=np.int8), (3, 1)), np.full((3, 1), factor, np.float16)

    @mb.program(input_specs=[mb.TensorSpec((16, 16), dtype=types.fp16)], opset_version=ct.target.iOS18)
    def program(x):
        return mb.linear(
            x=x,
            weight=mb.constexpr_blockwise_shift_scale(data=integers.astype(types.np_int4_dtype), scale=scale),
            name="y",
        )

    calls = []
    monkeypatch.setattr(
        "runtime.mil.executor.round_to_half",
        lambda array, in_place=False: calls.append(in_place) or round_to_half(array, in_place),
    )
    executor = Executor(Package(save(program, tmp_path / "weight.mlpackage")).function())
    expected = (integers * scale.astype(np.float32)).astype(np.float16).T
    np.testing.assert_array_equal(executor.run({"x": np.eye(16, dtype=np.float16)})["y"], expected)
    assert (True in calls) == rounded


def test_a_value_is_let_go_behind_its_last_use(tmp_path):
    """200 values of 4 MB one from another, two of them taken once more at the end: a few at a time, not 800 MB."""

    @mb.program(input_specs=[mb.TensorSpec((1024, 1024))], opset_version=ct.target.iOS18)
    def program(x):
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
    np.testing.assert_allclose(found, last + expected + x, rtol=1e-6)
    assert peak < 8 * x.nbytes


def test_many_values_are_rounded_to_half_like_one():
    """Around every boundary: three values at each step of a half, of every exponent, and between."""
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
            round_to_half(x).view(np.uint32), x.astype(np.float16).astype(np.float32).view(np.uint32)
        )
    with np.errstate(over="ignore"):
        for odd in (np.inf, -np.inf, np.nan, 65520.0):
            x = np.append(np.full(SMALL, 1 + 2**-11, np.float32), np.float32(odd))
            np.testing.assert_array_equal(round_to_half(x), x.astype(np.float16).astype(np.float32))
