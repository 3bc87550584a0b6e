"""What engines share: copies of states, and the checks that every call passes."""

import numpy as np
import pytest

from bundle.bundle import Bundle
from bundle.errors import UsageError, VoxportError
from bundle.spec import Kind, Signature, TensorSpec
from runtime.engines import open_engine
from runtime.engines.base import EngineOptions
from runtime.engines.inputs import check_inputs
from runtime.engines.states import PAGE_VALUES, copy_states

SIGNATURE = Signature(
    inputs=(
        TensorSpec("x", "float32", (1, 3), Kind.HIDDEN),
        TensorSpec("position", "int64", (1,), Kind.INDEX),
    ),
    outputs=(),
)


def test_copies_are_equal_and_their_own():
    """Whole pages, what is behind the last one, numbers that are none, and zeros between."""
    generator = np.random.default_rng(0)
    states = {
        "cache": np.zeros((1, 2, 3 * PAGE_VALUES, 1), np.float32),
        "window": generator.standard_normal((1, PAGE_VALUES + 7), dtype=np.float32),
        "count": np.array([3], np.int64),
        "odd": np.full((2, PAGE_VALUES), np.nan, np.float32)[:, ::-1],
    }
    states["cache"][0, 1, PAGE_VALUES + 5] = 1
    copies = copy_states(states)
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
def test_inputs_of_several_streams_are_checked_as_of_one(x, position, count, message):
    inputs = {"x": np.zeros(x, np.float32), "position": np.array([0] * (position[0] - 1) + [-1])}
    with pytest.raises(UsageError, match=message):
        check_inputs("step", SIGNATURE, inputs, count)
    for size in (1, 2, 4):
        values = {"x": np.zeros((size, 3), np.float32), "position": np.arange(size)}
        check_inputs("step", SIGNATURE, values, size)


@pytest.mark.slow
def test_a_turn_that_is_interrupted_mixes_no_streams(bundles, monkeypatch):
    """ExecuTorch's programs hold one stream's states; those of another are written in pieces."""
    engine = open_engine(Bundle(bundles / "executorch"), EngineOptions())
    first, second = engine.stream(), engine.stream()
    noise = np.random.default_rng(0)
    embeddings = noise.standard_normal(
        (1, 2, first.components["prefill"].signature.inputs[0].shape[-1]), dtype=np.float32
    )
    most = first.components["prefill"].rows_moved
    states = {name: array.copy() for name, array in second.snapshot().items()}
    for name in states:
        if "cache" in name:
            states[name][:, : most + 1] = noise.standard_normal(
                states[name][:, : most + 1].shape, dtype=np.float32
            )
    second.restore(states)
    first.run("prefill", {"embeddings": embeddings, "position": np.array([0])})
    step = {"embeddings": embeddings[:, :1], "position": np.array([2])}
    kept = first.snapshot()
    expected = first.run("decode_step", step)
    first.restore(kept)
    first.run("prefill", {"embeddings": embeddings, "position": np.array([0])})

    execute, written = engine.execute, []

    def interrupted(file, method, inputs):
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


@pytest.mark.slow
def test_programs_that_move_whole_caches_are_refused(bundles):
    bundle = Bundle(bundles / "executorch")
    entries = tuple(entry.model_copy(update={"state_rows_per_call": 0}) for entry in bundle.components)
    job = bundle.job.model_copy(update={"components": entries})
    bundle.manifest = bundle.manifest.model_copy(update={"job": job})
    with pytest.raises(VoxportError, match="export the bundle again"):
        open_engine(bundle, EngineOptions())
