"""What the executor does beyond single operations: loops and branches, and rounding to half precision."""

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
            return mb.cond(pred=odd, _true_fn=lambda: mb.identity(x=total), _false_fn=lambda: mb.sub(x=total, y=1), name="y")

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

    function, x = Package(save(program, tmp_path / "half.mlpackage")).function(), np.array([1.0, 0.1, 70000, 3e-8], np.float32)
    with np.errstate(over="ignore"):
        rounded = (x.astype(np.float16) * np.float16(1.001)).astype(np.float32) + np.float32(1e-5)
    np.testing.assert_array_equal(Executor(function, "float16").run({"x": x})["y"], rounded)
    exact = x * np.float32(np.float16(1.001)) + np.float32(1e-5)
    np.testing.assert_allclose(Executor(function, "float32").run({"x": x})["y"], exact, rtol=1e-6)


def test_many_values_are_rounded_to_half_like_one():
    """Around every boundary: three values at each step of a half, of every exponent, and between."""
    bits = np.arange(0, 2**32, 4096 - 1, dtype=np.uint64).astype(np.uint32)
    edges = (np.arange(2**19, dtype=np.uint64)[:, None] * 2**13 + np.array([0, 1, 4095, 4096, 4097, 8191])).astype(np.uint32).ravel()
    for part in (bits, edges):
        x = part.view(np.float32)
        x = x[np.isfinite(x) & (np.abs(x) < 65520)]
        np.testing.assert_array_equal(round_to_half(x).view(np.uint32), x.astype(np.float16).astype(np.float32).view(np.uint32))
    with np.errstate(over="ignore"):
        for odd in (np.inf, -np.inf, np.nan, 65520.0):
            x = np.append(np.full(SMALL, 1 + 2**-11, np.float32), np.float32(odd))
            np.testing.assert_array_equal(round_to_half(x), x.astype(np.float16).astype(np.float32))
