"""The check of batched calls, each with its fault: slots that influence each other."""

from typing import Any

import numpy as np
import pytest
from support.export.faulty_engines import BatchedStreams, Engines, Fault, StreamEngine, failed, no_fault

from voxport.export.verify.component_checks import check_batches
from voxport.export.verify.context import Context
from voxport.runtime.engines.base import Arrays, Stream


def context(engines: Engines, fault: Fault) -> Context:
    """The fault is in batched calls of up to three slots."""
    make = engines.eager.stream
    artifact = StreamEngine(make, lambda size: BatchedStreams(make, size, fault))
    return engines.context(
        artifact,
        max_batch={component.name: 3 if component.batched else 1 for component in engines.components},
    )


def test_batched_calls_without_a_fault_pass(engines: Engines) -> None:
    assert failed(check_batches(context(engines, no_fault))) == []
    compared = {result.component for result in check_batches(context(engines, no_fault))}
    assert compared == {"embed_codes", "decode_step", "acoustic_step"}


def one_position_for_all(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "decode_step" and not outputs:
        inputs["position"][:] = inputs["position"][0]


def swapped_slots(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    for array in outputs.values() if name == "embed_codes" else ():
        array[:] = np.roll(array, 1, axis=0)


def guidance_of_another_slot(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "acoustic_step" and outputs:
        outputs["velocity"][:, 1] = np.roll(outputs["velocity"][:, 1], 1, axis=0)


def a_row_of_another_slot(stream: Any, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name == "decode_step" and outputs:
        row = int(inputs["position"][-1])
        states = stream.slots[-1].save()
        states["v_cache_0"][:, row] = stream.slots[0].save()["v_cache_0"][:, row]
        stream.slots[-1].load(states)


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (one_position_for_all, {"decode_step.hidden", "decode_step.states"}),
        (swapped_slots, {"embed_codes.embeddings"}),
        (guidance_of_another_slot, {"acoustic_step.velocity"}),
        (a_row_of_another_slot, {"decode_step.states"}),
    ],
)
def test_slots_that_influence_each_other_fail(engines: Engines, fault: Fault, found: set[str]) -> None:
    assert found <= set(failed(check_batches(context(engines, fault))))
