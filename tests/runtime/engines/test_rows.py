"""Calls with more rows than a component takes at a time."""

from dataclasses import replace

import numpy as np
import pytest
from support.runtime.toy_engine import SlotStream
from support.runtime.toy_speech import BOOKS, DIM, ROWS, VOCAB, ToyEngine

from runtime.engines.rows import run_rows

ROWS_PER_CALL = 3
rng = np.random.default_rng(0)
CALLS = {
    "embed_text": ({"ids": rng.integers(0, VOCAB, (1, 7))}, 3),
    "prefill": ({"embeddings": rng.random((1, 6, DIM), np.float32), "position": np.array([2])}, 2),
    "codec_step": ({"codes": rng.integers(0, 9, (1, 4, BOOKS)), "position": np.array([0])}, 2),
    "embed_codes": ({"codes": rng.integers(0, 9, (1, BOOKS))}, 1),  # takes no rows
}


def stream_of(most: int) -> SlotStream:
    """A stream whose components take at most `most` rows."""
    stream = ToyEngine().stream()
    for name, signature in stream.signatures.items():
        stream.signatures[name] = replace(signature, dims={dim: (1, most) for dim in signature.dims})
    return stream


@pytest.mark.parametrize("component", CALLS)
def test_outputs_and_states_are_those_of_one_call(component: str) -> None:
    inputs, count = CALLS[component]
    whole, divided = stream_of(ROWS), stream_of(ROWS_PER_CALL)
    expected, outputs = whole.run(component, inputs), run_rows(divided, component, inputs)
    assert divided.engine.batches[component, 1] == count
    assert outputs.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name], array, err_msg=name)
    states = divided.snapshot()
    for name, array in whole.snapshot().items():
        np.testing.assert_array_equal(states[name], array, err_msg=name)


def test_inputs_that_fit_are_one_call() -> None:
    inputs, _ = CALLS["prefill"]
    stream = stream_of(6)
    run_rows(stream, "prefill", inputs)
    assert stream.engine.batches["prefill", 1] == 1
