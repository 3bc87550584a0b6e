"""Calls with more rows than a component takes at a time."""

from dataclasses import replace

import numpy as np
import pytest
from support.runtime.toy_engine import SlotStream
from support.runtime.toy_speech import BOOKS, DIM, ROWS, VOCAB, ToyEngine

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import ExportRequest
from voxport.export.resolve import Source, resolve
from voxport.export.targets import open_target
from voxport.model.graph import PROMPT_ROWS
from voxport.model.qwen3_tts.graphs import (
    MAX_CODEC_FRAMES,
    MAX_REFERENCE_FRAMES,
    MEL_FRAMES,
    PLANNED_CODEC_FRAMES,
)
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.runtime.engines.base import Arrays

ROWS_PER_CALL = 3
rng = np.random.default_rng(0)
CALLS = {
    "embed_text": ({"ids": rng.integers(0, VOCAB, (1, 7))}, 3),
    "prefill": ({"embeddings": rng.random((1, 6, DIM), np.float32), "position": np.array([2])}, 2),
    "codec_step": ({"codes": rng.integers(0, 9, (1, 4, BOOKS)), "position": np.array([0])}, 2),
    "embed_codes": ({"codes": rng.integers(0, 9, (1, BOOKS))}, 1),  # its input has no rows
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
    expected, outputs = whole.run(component, inputs), divided.run_rows(component, inputs)
    assert divided.engine.batches[component, 1] == count
    assert outputs.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(outputs[name], array, err_msg=name)
    states = divided.save()
    for name, array in whole.save().items():
        np.testing.assert_array_equal(states[name], array, err_msg=name)


def test_inputs_that_fit_are_one_call() -> None:
    inputs, _ = CALLS["prefill"]
    stream = stream_of(6)
    stream.run_rows("prefill", inputs)
    assert stream.engine.batches["prefill", 1] == 1


def test_states_have_the_rows_before_a_call_that_raises() -> None:
    inputs, _ = CALLS["prefill"]
    before, stream = stream_of(ROWS), stream_of(ROWS_PER_CALL)
    before.run("prefill", {**inputs, "embeddings": inputs["embeddings"][:, :ROWS_PER_CALL]})

    def fail_later(component: str, given: Arrays) -> None:
        if given["position"] > inputs["position"]:
            raise UsageError("no")

    stream.engine.fault = fail_later
    with pytest.raises(UsageError):
        stream.run_rows("prefill", inputs)
    assert np.array_equal(stream.save()["cache"], before.save()["cache"])


@pytest.mark.parametrize("target", ["onnx", "executorch", "coreml", "coreai"])
def test_executorch_takes_fewer_rows_than_other_targets(target: str) -> None:
    """Of what can be divided. The encoders of a voice take a whole recording."""
    resolved = resolve(Source(random_checkpoint("qwen3_tts")), ExportRequest(cache_length=2048))
    found = {
        component.name: [high for _, high in open_target(target).signature(component).dims.values()]
        for component in resolved.components()
    }
    rows, frames = (PROMPT_ROWS, PLANNED_CODEC_FRAMES) if target == "executorch" else (2048, MAX_CODEC_FRAMES)
    assert found == {
        "embed_text": [rows],
        "embed_codes": [rows],
        "prefill": [rows],
        "decode_step": [],
        "code_predictor": [],
        "codec": [frames],
        "codec_step": [frames],
        "speech_encoder": [MAX_REFERENCE_FRAMES],
        "speaker_encoder": [MEL_FRAMES[1]],
    }
