"""The checks of caches without end, each with the fault that it is for: a stream that forgets, remembers too long, or ends."""

import numpy as np
import pytest
from eager_streams import Engines, FaultyStream, failed, no_fault

from export.verify.checks import each_component, last_position, long_run, replay, streaming
from export.verify.teacher_forcing import agreement, end_to_end
from model.layers.attention import Attention
from model.synthetic.checkpoint import embedded_default
from runtime.engines.base import Stream

CACHE = 64


@pytest.fixture(scope="module", params=["BSHD", "BHSD, staged"])
def engines(request) -> Engines:
    return Engines(embedded_default("voxtral_realtime"), "none", CACHE, request.param, streaming=True)


def test_without_a_fault_every_check_passes(engines):
    context, reports = engines.context(no_fault), {}
    checks = (each_component(context), long_run(context, 300), replay(context), streaming(context))
    assert [name for check in checks for name in failed(check)] == []
    assert failed(agreement(context, engines.family, engines.constants, reports)) == []
    assert failed(end_to_end(context, engines.family, engines.constants, reports, True)) == []
    assert (
        reports["codes, artifact and eager"] == {"codes_equal": 1.0}
        and reports["free run, artifact and eager"]["tokens_equal"] == 1.0
    )


def altered(engines: Engines, change) -> object:
    """A context whose artifact is called with other inputs: `change(name, inputs)`."""
    context = engines.context(no_fault)
    whole = context.artifact

    def make() -> Stream:
        stream = whole()
        stream.run = lambda name, inputs: FaultyStream.run(stream, name, change(name, inputs))
        return stream

    context.artifact = make
    return context


def test_positions_that_begin_anew_where_the_cache_is_full(engines):
    """Rows are right, angles and masks are not."""
    context = altered(
        engines,
        lambda name, inputs: (
            {**inputs, "position": inputs["position"] % CACHE} if name == "decode_step" else inputs
        ),
    )
    assert "decode_step.hidden" in failed(long_run(context, 300))
    assert failed(last_position(context)).count("decode_step.hidden") == 1


def test_a_window_that_is_one_too_long(engines):
    """Seen from the first position that has a key to forget."""
    encoder = engines.model.graph("encoder").module
    parts = [part for part in encoder.modules() if isinstance(part, Attention)]
    context = engines.context(no_fault)
    inner = context.artifact

    def longer() -> Stream:
        stream = inner()
        run = stream.run

        def wide(name, inputs):
            for part in parts:
                part.window += name == "audio_encoder"
            try:
                return run(name, inputs)
            finally:
                for part in parts:
                    part.window -= name == "audio_encoder"

        stream.run = wide
        return stream

    context.artifact = longer
    assert "audio_encoder.embeddings" in failed(each_component(context))


def test_states_of_the_convolutions_that_are_not_carried(engines):
    def fault(stream, name, inputs, outputs):
        if name in ("audio_encoder", "encode_chunk"):
            stream.change_states(lambda states: [states[part].fill(0) for part in ("conv_0", "conv_1")])

    found = failed(streaming(engines.context(fault)))
    assert found == ["audio_encoder.embeddings"] and "encode_chunk.states" in failed(
        each_component(engines.context(fault))
    )


def test_a_stream_that_goes_on_beyond_the_last_position_of_all(engines):
    context = altered(
        engines, lambda name, inputs: {**inputs, "position": np.minimum(inputs["position"], 1000)}
    )
    found = failed(last_position(context))
    assert {
        "decode_step: one past the last position is refused",
        "encode_chunk: one past the last position is refused",
    } <= set(found)


def test_a_token_that_is_not_fed_back(engines):
    context = altered(
        engines, lambda name, inputs: {"ids": inputs["ids"] * 0 + 7} if name == "embed_tokens" else inputs
    )
    assert "codes, teacher-forced" in failed(agreement(context, engines.family, engines.constants, {}))
