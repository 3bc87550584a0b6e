"""Common code of engines: the table of engines, copies of states, and the checks of every call."""

import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.stand_ins import stand_in

from voxport.bundle.errors import EngineUnavailable, UsageError, VoxportError
from voxport.bundle.manifest import Bundle
from voxport.bundle.spec import Kind, Signature, TensorSpec
from voxport.runtime.engines import ENGINE_OPTIONS, ENGINES, EngineEntry, onnx, open_engine
from voxport.runtime.engines.base import Arrays, EngineOptions, check_inputs
from voxport.runtime.engines.onnx import OnnxEngine
from voxport.runtime.engines.states import PAGE_VALUES, copy_pages

SIGNATURE = Signature(
    inputs=(
        TensorSpec("x", "float32", (1, 3), Kind.HIDDEN),
        TensorSpec("position", "int64", (1,), Kind.INDEX),
    ),
    outputs=(),
)


def test_copies_of_states_are_equal_and_independent() -> None:
    """Whole pages, a partial last page, NaN values, and zeros between."""
    generator = np.random.default_rng(0)
    states: Arrays = {
        "cache": np.zeros((1, 2, 3 * PAGE_VALUES, 1), np.float32),
        "window": generator.standard_normal((1, PAGE_VALUES + 7), dtype=np.float32),
        "count": np.array([3], np.int64),
        "odd": np.full((2, PAGE_VALUES), np.nan, np.float32)[:, ::-1],
    }
    states["cache"][0, 1, PAGE_VALUES + 5] = 1
    copies = {name: copy_pages(array) for name, array in states.items()}
    for name, array in states.items():
        np.testing.assert_array_equal(copies[name], array)
        assert copies[name].dtype == array.dtype
    copies["cache"][:] = 2
    copies["window"][:] = 2
    assert states["cache"].sum() == 1 and not (states["window"] == 2).any()


@pytest.mark.parametrize(
    ("x", "position", "count", "message"),
    [
        ((2, 3), (2,), 1, r"input x has shape \[2, 3\], expected \[1, 3\]"),
        ((1, 3), (2,), 2, r"input x has shape \[1, 3\]"),
        ((2, 3), (1,), 2, r"input position has shape \[1\]"),
        ((2, 3), (2,), 2, "position -1"),
    ],
)
def test_inputs_of_several_streams_are_checked_as_of_one(
    x: tuple[int, int], position: tuple[int], count: int, message: str
) -> None:
    inputs = {"x": np.zeros(x, np.float32), "position": np.array([0] * (position[0] - 1) + [-1])}
    with pytest.raises(UsageError, match=message):
        check_inputs("step", SIGNATURE, inputs, count)
    with pytest.raises(UsageError, match="input x is float64, expected float32"):
        check_inputs("step", SIGNATURE, {"x": np.zeros((1, 3)), "position": np.array([0])})
    for size in (1, 2, 4):
        values = {"x": np.zeros((size, 3), np.float32), "position": np.arange(size)}
        check_inputs("step", SIGNATURE, values, size)


def test_options_of_an_engine_are_checked_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = stand_in(folder=tmp_path, job=stand_in(target="npz"))
    with pytest.raises(UsageError, match="no engine runs target 'npz'; there are onnx, executorch, coreml"):
        open_engine(bundle)
    monkeypatch.setitem(ENGINES, "npz", EngineEntry("module", "Engine", ("numpy",)))
    with pytest.raises(UsageError, match="threads 0: expected 1 to 1024") as caught:
        open_engine(bundle, EngineOptions(threads=0))
    assert caught.value.field == "threads"
    with pytest.raises(UsageError, match="compute_units applies to bundles for coreml") as caught:
        open_engine(bundle, EngineOptions(compute_units="cpu"))
    assert caught.value.field == "compute_units"
    monkeypatch.setitem(ENGINES, "npz", EngineEntry("module", "Engine", ("no_such_package",)))
    with pytest.raises(EngineUnavailable, match=r"no_such_package not installed; run .*\[npz\]"):
        open_engine(bundle)


@pytest.mark.slow
def test_an_interrupted_change_of_streams_does_not_mix_their_states(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An ExecuTorch program holds the states of one stream. Another stream's states are written in blocks."""
    engine: Any = open_engine(Bundle(bundles / "executorch"), EngineOptions())
    first, second = engine.stream(), engine.stream()
    noise = np.random.default_rng(0)
    embeddings = noise.standard_normal(
        (1, 2, first.signatures["prefill"].inputs[0].shape[-1]), dtype=np.float32
    )
    most = engine.bundle.component("prefill").state_rows_per_call
    states = {name: array.copy() for name, array in second.save().items()}
    for name in states:
        if "cache" in name:
            states[name][:, : most + 1] = noise.standard_normal(
                states[name][:, : most + 1].shape, dtype=np.float32
            )
    second.load(states)
    first.run("prefill", {"embeddings": embeddings, "position": np.array([0])})
    step = {"embeddings": embeddings[:, :1], "position": np.array([2])}
    kept = first.save()
    expected = first.run("decode_step", step)
    first.load(kept)
    first.run("prefill", {"embeddings": embeddings, "position": np.array([0])})

    execute, written = engine.execute, []

    def interrupted(file: str, method: str, inputs: list[Any]) -> Any:
        if method == "backbone.write":
            written.append(inputs[0])
            if len(written) == 2:
                raise KeyboardInterrupt
        return execute(file, method, inputs)

    monkeypatch.setattr(engine, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        second.run("decode_step", step | {"position": np.array([most + 1])})
    found = first.run("decode_step", step)
    assert [len(rows) for rows in written] == [most, 1, 2]
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def bundle_of_sizes(*megabytes: float) -> Any:
    return stand_in(components=[stand_in(weight_bytes=int(mb * 2**20)) for mb in megabytes])


def test_the_number_of_threads_fits_the_largest_component(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert EngineOptions().thread_count(bundle_of_sizes(7, 7, 7)) == 1
    assert EngineOptions().thread_count(bundle_of_sizes(0.1, 8)) == 6
    assert EngineOptions(threads=3).thread_count(bundle_of_sizes(1)) == 3
    assert EngineOptions(threads=3).thread_count(bundle_of_sizes(100)) == 3


def test_small_graphs_have_one_thread_beside_large_ones(
    bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle(bundles / "onnx")
    sizes = {entry.file: 0 for entry in bundle.components}
    for entry in bundle.components:  # several may be in one file
        sizes[entry.file] = max(sizes[entry.file], entry.weight_bytes)
    limit = max(sizes.values())
    monkeypatch.setattr(onnx, "LEAST_BYTES_FOR_THREADS", limit)
    engine = OnnxEngine(bundle, EngineOptions(threads=2))
    found = {file: engine.session(file).get_session_options().intra_op_num_threads for file in sizes}
    assert found == {file: 2 if size == limit else 1 for file, size in sizes.items()}


@pytest.mark.slow
def test_products_of_executorch_threads_start_no_threads() -> None:
    """MKL has one thread in a process that loads torch for ExecuTorch only."""
    code = """
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.engines.executorch import ExecuTorchEngine
ExecuTorchEngine(SimpleNamespace(components=()), EngineOptions())
import torch
with ThreadPoolExecutor(1) as pool:
    print(pool.submit(torch.__config__.parallel_info).result())
"""
    environment = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert "mkl_get_max_threads() : 1\n" in done.stdout, done.stderr


@pytest.mark.slow
def test_programs_that_read_and_write_whole_caches_are_refused(bundles: Path) -> None:
    bundle = Bundle(bundles / "executorch")
    entries = tuple(entry.model_copy(update={"state_rows_per_call": 0}) for entry in bundle.components)
    job = bundle.job.model_copy(update={"components": entries})
    bundle.manifest = bundle.manifest.model_copy(update={"job": job})
    with pytest.raises(VoxportError, match="export the bundle again"):
        open_engine(bundle, EngineOptions())


def test_every_option_of_an_engine_is_a_row_of_the_table_and_a_field() -> None:
    names = {field.name for field in fields(EngineOptions)} - {"threads"}
    assert names == set(ENGINE_OPTIONS) == {name for row in ENGINES.values() for name in row.options}
