"""Verification finds faults in the speech decoder of an artifact of Qwen3-TTS."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from support.export.codec_faults import WRONG_VALUES, drop_a_state
from support.export.faulty_engines import Engines, failed

from voxport.export.verify.component_checks import check_components, check_streaming
from voxport.export.verify.context import Extent
from voxport.export.verify.eager import EagerEngine
from voxport.model.qwen3_tts.codec.decoder import CodecDecoder
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.quantize.modules import int8_per_block


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines(random_checkpoint("qwen3_tts"), "none", cache=96)


def found(engines: Engines, *faults: Callable[[CodecDecoder], None]) -> set[str]:
    """The checks that fail where the artifact has these faults: of single calls, and of chunks."""
    right = engines.model.module
    codec: Any = deepcopy(right("codec"))
    for fault in faults:
        fault(codec)
    parts = {part.name: part for part in engines.components if part.graph == "codec"}
    artifact = EagerEngine(
        engines.components, lambda name: codec if name in parts else right(name), "BSHD", int8_per_block
    )
    context = replace(engines.context(artifact), components=parts, extent=Extent((0,), (1, 5), chunked=25))
    chunks = failed(check_streaming(context))
    return {*failed(check_components(context)), *(f"{name} in chunks" for name in chunks)}


def test_a_right_artifact_passes(engines: Engines) -> None:
    assert found(engines) == set()


ONE_FRAME = {"codec_step.audio", "codec_step.states", "codec.audio in chunks"}


@pytest.mark.parametrize("fault", WRONG_VALUES)
def test_wrong_values_are_found_by_every_check_of_the_codec(
    engines: Engines, fault: Callable[[CodecDecoder], None]
) -> None:
    assert found(engines, fault) == {"codec.audio", "codec.states", *ONE_FRAME}


def test_a_dropped_state_is_found_in_calls_behind_others(engines: Engines) -> None:
    assert found(engines, drop_a_state) == ONE_FRAME
