"""The checks themselves: eager with a fault put into it stands for an artifact, and the check that is meant for the fault finds it.

`tests/test_verify.py` plants faults in files; here are those that a file would need a compiler for.
"""

import numpy as np
import pytest
from eager_streams import CACHE, FaultyStream, failed, no_fault

from export.verify.checks import each_component, last_position, long_run, replay, streaming
from export.verify.comparison import FLOAT_BAR
from export.verify.context import LONG
from export.verify.teacher_forcing import agreement, end_to_end
from runtime.engines.base import Arrays, Stream

STEPS = 100


def test_without_a_fault_every_check_passes(engines):
    context, reports = engines.context(no_fault), {}
    for check in (each_component(context), long_run(context, STEPS), replay(context), streaming(context)):
        assert failed(check) == []
    assert failed(agreement(context, engines.family, engines.constants, reports)) == []
    assert failed(end_to_end(context, engines.family, engines.constants, reports, True)) == []
    assert reports["codes, artifact and eager"] == {"codes_equal": 1.0, "rounded_equal": 1.0}
    assert reports["free run, artifact and eager"]["log_mel_distance_db"] == 0


@pytest.mark.parametrize(
    ("component", "output"),
    [
        ("embed_text", "embeddings"),
        ("prefill", "hidden"),
        ("decode_step", "semantic_logits"),
        ("acoustic_step", "velocity"),
        ("codec_step", "audio"),
    ],
)
def test_an_output_off_by_ten_bars(engines, component, output):
    def fault(stream, name, inputs, outputs):
        if name == component:
            outputs[output] += 10 * FLOAT_BAR * np.abs(outputs[output]).max()

    assert failed(each_component(engines.context(fault))) == [f"{component}.{output}"]


def test_numbers_that_are_none_on_both_sides(engines):
    def fault(stream, name, inputs, outputs):
        if name == "acoustic_step":
            outputs["next_x"][0, 3] = np.nan

    assert failed(each_component(engines.context(fault, eager_too=True))) == ["acoustic_step.next_x"]


def test_swapped_outputs(engines):
    def fault(stream, name, inputs, outputs):
        if name == "prefill":
            outputs["condition"], outputs["semantic_logits"] = (
                outputs["semantic_logits"],
                outputs["condition"],
            )

    assert failed(each_component(engines.context(fault))) == ["prefill.semantic_logits", "prefill.condition"]


def test_a_cache_row_that_is_not_written(engines):
    """One of 24 and more rows: a median over rows or over a cache of zeros would not see it."""

    def fault(stream, name, inputs, outputs):
        if name == "decode_step":
            stream.change_states(lambda states: states["k_cache_1"][:, inputs["position"][0]].fill(0))

    assert failed(each_component(engines.context(fault))) == ["decode_step.states"]


def test_a_row_written_beyond_the_position(engines):
    def fault(stream, name, inputs, outputs):
        if name == "prefill":
            stream.change_states(lambda states: states["v_cache_0"][:, -1].fill(1e-6))

    assert failed(each_component(engines.context(fault))) == ["prefill: rows that are not written"]


def test_an_error_that_grows_from_step_to_step(engines):
    """Under the bar at every step, and at the end eight times a tenth of it."""

    def fault(stream, name, inputs, outputs):
        if name == "decode_step":
            growth = 0.8 * FLOAT_BAR * min((inputs["position"][0] - LONG) / STEPS, 1) ** 2
            outputs["hidden"] += growth * np.abs(outputs["hidden"]).max()

    assert failed(long_run(engines.context(fault), STEPS)) == ["no drift"]


def test_a_cache_that_forgets_its_first_row(engines):
    """At one step of a hundred."""

    def fault(stream, name, inputs, outputs):
        if name == "decode_step" and inputs["position"][0] == LONG + 80:
            stream.change_states(
                lambda states: [array[:, 0].fill(0) for name, array in states.items() if "cache" in name]
            )

    assert "decode_step.states" in failed(long_run(engines.context(fault), STEPS))


def test_a_last_row_that_is_off(engines):
    def fault(stream, name, inputs, outputs):
        if name == "decode_step" and inputs["position"][0] == CACHE - 1:
            outputs["hidden"] += 10 * FLOAT_BAR * np.abs(outputs["hidden"]).max()

    assert failed(last_position(engines.context(fault))) == ["decode_step.hidden"]


def test_a_stream_that_takes_one_position_too_many(engines):
    context = engines.context(no_fault)
    longer = engines.context(no_fault).artifact

    def lenient() -> Stream:
        stream = longer()
        stream.run = lambda name, inputs: FaultyStream.run(
            stream, name, {**inputs, "position": np.minimum(inputs["position"], CACHE - 1)}
        )
        return stream

    context.artifact = lenient
    assert failed(last_position(context)) == ["decode_step: one past the last position is refused"]


def test_a_call_that_depends_on_how_many_came_before(engines):
    def fault(stream, name, inputs, outputs):
        if name == "decode_step":
            outputs["hidden"] *= np.float32(1 + 1e-6 * stream.calls)

    assert "reset and replay" in failed(replay(engines.context(fault)))


def test_two_streams_that_share_their_states(engines):
    context = engines.context(no_fault)
    one = context.artifact()
    context.artifact = lambda: one
    assert failed(replay(context)) == ["two interleaved streams"]


def test_a_codec_that_takes_every_chunk_for_the_first(engines):
    context = engines.context(no_fault)
    whole = context.artifact

    def forgetful() -> Stream:
        stream = whole()
        stream.run = lambda name, inputs: FaultyStream.run(
            stream, name, {**inputs, "position": np.zeros(1, np.int64)}
        )
        return stream

    context.artifact = forgetful
    assert failed(streaming(context)) == ["codec.audio"]


def test_a_logit_that_wins_by_more_than_any_rounding(engines):
    def fault(stream, name, inputs, outputs):
        if name in ("prefill", "decode_step"):
            outputs["semantic_logits"][0, 7] = 2 * np.abs(outputs["semantic_logits"]).max()

    assert failed(agreement(engines.context(fault), engines.family, engines.constants, {})) == [
        "codes, teacher-forced"
    ]


def test_acoustic_values_two_levels_off(engines):
    def fault(stream, name, inputs, outputs):
        if name == "acoustic_step" and inputs["step"][0] == engines.constants.euler_steps - 1:
            outputs["next_x"] += 2.5 * 2 / (engines.constants.acoustic_levels - 1)

    assert failed(agreement(engines.context(fault), engines.family, engines.constants, {})) == [
        "rounded codes, teacher-forced"
    ]


def test_audio_that_is_no_number(engines):
    def fault(stream, name, inputs, outputs):
        if name == "codec_step":
            outputs["audio"][0, 5] = np.inf

    assert failed(end_to_end(engines.context(fault), engines.family, engines.constants, {}, True)) == [
        "free run"
    ]


def test_a_model_that_quantisation_ruined(engines):
    """Full precision that has nothing to do with eager: the bar of a recipe is one that can be missed."""

    def fault(stream, name, inputs, outputs):
        if name == "prefill":
            outputs["hidden"] = outputs["hidden"][..., ::-1].copy()

    context = engines.context(
        no_fault, full=lambda: FaultyStream(engines.eager.stream(), fault), bars={"backbone": 0.45}
    )
    assert failed(each_component(context)) == ["prefill.hidden"]


def test_an_engine_that_breaks_is_a_failed_check(engines):
    def fault(stream, name, inputs, outputs):
        if name == "embed_codes":
            raise ValueError("shapes do not fit")

    assert "stopped" in failed(each_component(engines.context(fault)))


def off_by(part: float, array: np.ndarray) -> np.ndarray:
    """Everywhere by a part of the largest value: what a tie may do to one value, in all."""
    return array + np.float32(part) * np.abs(array).max()


def test_an_output_off_at_the_longest_size_alone(engines):
    def fault(stream, name, inputs, outputs):
        if name == "prefill" and outputs["hidden"].shape[1] == LONG:
            outputs["hidden"] = off_by(0.04, outputs["hidden"])

    assert failed(each_component(engines.context(fault))) == ["prefill.hidden"]


def test_an_output_off_in_some_channels(engines):
    def fault(stream, name, inputs, outputs):
        if name == "decode_step":
            some = outputs["hidden"].shape[-1] * 2 // 5
            outputs["hidden"][..., :some] = off_by(0.04, outputs["hidden"])[..., :some]

    assert "decode_step.hidden" in failed(each_component(engines.context(fault)))


def test_an_output_off_in_some_steps(engines):
    def fault(stream, name, inputs, outputs):
        if name == "decode_step" and 40 <= inputs["position"][0] < 80:
            outputs["hidden"] = off_by(0.04, outputs["hidden"])

    assert "decode_step.hidden" in failed(long_run(engines.context(fault), STEPS))


def test_caches_that_fade(engines):
    """By less than any bar from step to step."""

    def fade(states: Arrays) -> None:
        for name, array in states.items():
            if "cache" in name:
                array *= np.float32(1 - 1e-6)

    def fault(stream, name, inputs, outputs):
        if name == "decode_step":
            stream.change_states(fade)

    assert "written rows stay" in failed(long_run(engines.context(fault), STEPS))


def test_a_prefill_that_works_from_the_first_position_alone(engines):
    def fault(stream, name, inputs, outputs):
        if name == "prefill" and inputs["position"][0]:
            outputs["hidden"][:] = 0

    assert failed(each_component(engines.context(fault))) == ["prefill.hidden"]


def test_a_codec_that_is_off_in_long_calls_alone(engines):
    def fault(stream, name, inputs, outputs):
        if name == "codec_step" and inputs["codes"].shape[1] > LONG:
            outputs["audio"] = off_by(0.12, outputs["audio"])

    context = engines.context(fault)
    assert failed(each_component(context)) == []
    assert failed(streaming(context)) == ["codec.audio"]


def test_a_runner_up_that_wins_by_little(engines):
    """By 3 % of the largest logit, further than ties move any."""

    def fault(stream, name, inputs, outputs):
        if name in ("prefill", "decode_step"):
            logits = outputs["semantic_logits"][0]
            live = logits[1 : 2 + engines.constants.semantic_codes]
            first, second = np.argsort(live)[::-1][:2]
            live[second] = live[first] + 0.03 * np.abs(live).max()

    assert failed(agreement(engines.context(fault), engines.family, engines.constants, {})) == [
        "codes, teacher-forced"
    ]


def test_a_model_that_ends_before_its_first_frame_in_eager_too(engines):
    def fault(stream, name, inputs, outputs):
        if name == "prefill":
            outputs["semantic_logits"][0, 1] = 1e3

    assert (
        failed(
            end_to_end(engines.context(fault, eager_too=True), engines.family, engines.constants, {}, True)
        )
        == []
    )
    assert failed(end_to_end(engines.context(fault), engines.family, engines.constants, {}, True)) == [
        "free run"
    ]
