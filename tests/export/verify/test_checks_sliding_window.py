"""The checks of sliding-window caches, each with its fault: lost rows, a wrong window, an early end."""

from typing import Any

import numpy as np
import pytest
from support.export.faulty_engines import Engines, failed, measurements, no_fault, with_artifact

from voxport.export.verify.code_checks import check_codes
from voxport.export.verify.component_checks import check_components, check_last_positions, check_streaming
from voxport.export.verify.modes import Extent
from voxport.export.verify.run_checks import check_free_run, check_long_runs, check_replay
from voxport.model.layers.attention import Attention
from voxport.model.synthetic.checkpoint import random_checkpoint
from voxport.runtime.engines.base import Arrays, Stream

CACHE = 64


@pytest.fixture(scope="module", params=["BSHD", "BHSD, staged"])
def engines(request: pytest.FixtureRequest) -> Engines:
    found = Engines(random_checkpoint("voxtral_realtime"), "none", CACHE, request.param, streaming=True)
    found.extent = Extent(steps=300)
    return found


def test_without_a_fault_every_check_passes(engines: Engines) -> None:
    context = engines.context(no_fault)
    assert failed(check_components(context)) == []
    assert failed(check_long_runs(context)) == []
    assert failed(check_last_positions(context)) == []
    assert failed(check_replay(context)) == []
    assert failed(check_streaming(context)) == []
    codes = list(check_codes(context))
    free_run = list(check_free_run(context))
    assert failed(codes) == failed(free_run) == []
    assert measurements(codes)["codes, artifact and eager"] == {"codes_equal": 1.0}
    assert measurements(free_run)["free run, artifact and eager"]["tokens_equal"] == 1.0


def test_positions_that_restart_when_the_cache_is_full_fail(engines: Engines) -> None:
    """Rows are correct, angles and masks are wrong."""
    context = engines.with_inputs(
        lambda name, inputs: (
            {**inputs, "position": inputs["position"] % CACHE} if name == "decode_step" else inputs
        ),
    )
    assert "decode_step.hidden" in failed(check_long_runs(context))
    assert failed(check_last_positions(context)).count("decode_step.hidden") == 1


def test_a_window_that_is_one_position_too_long_fails(engines: Engines) -> None:
    """The error appears at the first position beyond the window."""
    encoder = engines.model.graph("encoder").module
    attentions: list[Any] = [module for module in encoder.modules() if isinstance(module, Attention)]
    context = engines.context(no_fault)
    inner = context.engines.artifact

    def longer() -> Stream:
        stream = inner.stream()
        run = stream.run

        def wide(name: str, inputs: Arrays) -> Arrays:
            for attention in attentions:
                attention.window += name == "audio_encoder"
            try:
                return run(name, inputs)
            finally:
                for attention in attentions:
                    attention.window -= name == "audio_encoder"

        vars(stream)["run"] = wide
        return stream

    assert "audio_encoder.embeddings" in failed(check_components(with_artifact(context, longer)))


def test_convolution_states_that_are_not_carried_fail(engines: Engines) -> None:
    def fault(stream: Any, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name in ("audio_encoder", "encode_chunk"):
            stream.change_states(lambda states: [states[name].fill(0) for name in ("conv_0", "conv_1")])

    found = failed(check_streaming(engines.context(fault)))
    assert found == ["audio_encoder.embeddings"] and "encode_chunk.states" in failed(
        check_components(engines.context(fault))
    )


def test_a_stream_that_accepts_positions_beyond_the_last_fails(engines: Engines) -> None:
    context = engines.with_inputs(
        lambda name, inputs: {**inputs, "position": np.minimum(inputs["position"], 1000)}
    )
    found = failed(check_last_positions(context))
    assert {
        "decode_step: one past the last position is refused",
        "encode_chunk: one past the last position is refused",
    } <= set(found)


def test_a_token_that_is_not_fed_back_fails(engines: Engines) -> None:
    context = engines.with_inputs(
        lambda name, inputs: {"ids": inputs["ids"] * 0 + 7} if name == "embed_tokens" else inputs
    )
    assert "codes, teacher-forced" in failed(check_codes(context))
