"""The checks find faults in engines. The artifact is eager with a fault added.

`test_verify.py` plants faults in files; the ones here would need a compiler.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.export.faulty_engines import CACHE, Engines, failed, no_fault, reports, with_artifact

from voxport.export.verify.code_checks import check_codes
from voxport.export.verify.comparison import Check, Comparison, FreeRun, Report
from voxport.export.verify.component_checks import check_components, check_last_positions, check_streaming
from voxport.export.verify.context import MAX_ROWS, SAMPLE, Context
from voxport.export.verify.report import VerificationResult, table
from voxport.export.verify.run_checks import check_free_run, check_long_runs, check_replay
from voxport.model.family import VerificationPlan
from voxport.runtime.engines.base import Arrays, Stream

STEPS = 100


def codes_of(engines: Engines, context: Context) -> Iterable[Check | Report]:
    return check_codes(context, engines.workload, engines.constants)


def components_of(context: Context, name: str) -> Iterable[Comparison | Check]:
    """The check of the components that share the graph of `name`."""
    graph = context.components[name].graph
    kept = {key: part for key, part in context.components.items() if part.graph == graph}
    return check_components(replace(context, components=kept))


def free_run_of(engines: Engines, context: Context) -> Iterable[Check | Report | FreeRun]:
    return check_free_run(context, engines.workload, engines.constants)


def test_without_a_fault_every_check_passes(engines: Engines) -> None:
    context = engines.context(no_fault)
    assert failed(check_components(context)) == []
    assert failed(check_long_runs(context, STEPS)) == []
    assert failed(check_last_positions(context)) == []
    assert failed(check_replay(context)) == []
    assert failed(check_streaming(context)) == []
    codes, free_run = list(codes_of(engines, context)), list(free_run_of(engines, context))
    assert failed(codes) == failed(free_run) == []
    assert reports(codes)["codes, artifact and eager"] == {"codes_equal": 1.0, "other_codes_equal": 1.0}
    assert reports(free_run)["free run, artifact and eager"]["log_mel_distance_db"] == 0


@pytest.mark.parametrize(
    ("component", "output", "size"),
    [
        ("embed_text", "embeddings", 1e-3),
        ("prefill", "hidden", 1e-3),
        ("decode_step", "semantic_logits", 1e-3),
        ("acoustic_step", "velocity", 1e-3),
        ("codec_step", "audio", 0.1),
    ],
)
def test_an_error_of_every_call_fails(engines: Engines, component: str, output: str, size: float) -> None:
    """With integers, about half of the calls of the codec meet a tie, and more on some processors.

    A fault in its output is found on every processor if it exceeds twice the effect of rounding (0.05).
    """

    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == component:
            outputs[output] += size * np.abs(outputs[output]).max()

    assert failed(components_of(engines.context(fault), component)) == [f"{component}.{output}"]


def test_one_wrong_euler_step_is_found_in_a_sample(engines: Engines) -> None:
    """A sample has one seed, and calls every step."""
    for wrong in range(engines.constants.euler_steps):

        def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays, wrong: int = wrong) -> None:
            if name == "acoustic_step" and inputs["step"][0] == wrong:
                outputs["next_x"] *= 1.2

        sample = replace(engines.context(fault), extent=SAMPLE)
        assert failed(components_of(sample, "acoustic_step")) == ["acoustic_step.next_x"]


def test_nan_in_artifact_and_eager_fails(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "acoustic_step":
            outputs["next_x"][0, 3] = np.nan

    assert failed(components_of(engines.context(fault, eager=engines.faulty(fault)), "acoustic_step")) == [
        "acoustic_step.next_x"
    ]


def test_swapped_outputs_fail(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "prefill":
            outputs["condition"], outputs["semantic_logits"] = (
                outputs["semantic_logits"],
                outputs["condition"],
            )

    assert failed(components_of(engines.context(fault), "prefill")) == ["stopped"]  # their shapes differ


def test_a_cache_row_that_is_not_written_fails(engines: Engines) -> None:
    """One of at least 24 rows. A median over rows, or a cache of zeros, would hide it."""

    def fault(stream: Any, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "decode_step":
            stream.change_states(lambda states: states["k_cache_0"][:, inputs["position"][0]].fill(0))

    assert failed(components_of(engines.context(fault), "decode_step")) == ["decode_step.states"]


def test_a_row_written_beyond_the_position_fails(engines: Engines) -> None:
    def fault(stream: Any, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "prefill":
            stream.change_states(lambda states: states["v_cache_0"][:, -1].fill(1e-6))

    assert failed(components_of(engines.context(fault), "prefill")) == ["prefill: rows that are not written"]


@pytest.mark.parametrize("engines", ["none"], indirect=True)
def test_an_error_that_grows_with_each_step_fails(engines: Engines) -> None:
    """The error is under the bar of 1e-4 at every step. At the end it is eight times a tenth of it.

    With integers, one tie near the start of the run leaves this check out.
    """

    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "decode_step":
            growth = 8e-5 * min((inputs["position"][0] - MAX_ROWS) / STEPS, 1) ** 2
            outputs["hidden"] += growth * np.abs(outputs["hidden"]).max()

    assert failed(check_long_runs(engines.context(fault), STEPS)) == ["no drift"]


def test_a_cache_that_loses_its_first_row_fails(engines: Engines) -> None:
    """The fault is at one of 100 steps."""

    def fault(stream: Any, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "decode_step" and inputs["position"][0] == MAX_ROWS + 80:
            stream.change_states(
                lambda states: [array[:, 0].fill(0) for name, array in states.items() if "cache" in name]
            )

    assert "decode_step.states" in failed(check_long_runs(engines.context(fault), STEPS))


def test_an_error_at_the_last_position_fails(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "decode_step" and inputs["position"][0] == CACHE - 1:
            outputs["hidden"] += 1e-3 * np.abs(outputs["hidden"]).max()

    assert failed(check_last_positions(engines.context(fault))) == ["decode_step.hidden"]


def test_an_error_of_the_prefill_at_the_last_position_fails(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "prefill" and inputs["position"][0] == CACHE - 1:
            outputs["hidden"] += 1e-3 * np.abs(outputs["hidden"]).max()

    assert failed(check_last_positions(engines.context(fault))) == ["prefill.hidden"]


def clamped_position(name: str, inputs: Arrays) -> Arrays:
    return inputs | {
        what: np.minimum(array, CACHE - 1) for what, array in inputs.items() if what == "position"
    }


def test_a_stream_that_accepts_one_position_too_many_fails(engines: Engines) -> None:
    context = engines.with_inputs(clamped_position)
    assert set(failed(check_last_positions(context))) == {
        "prefill: one past the last position is refused",
        "decode_step: one past the last position is refused",
    }


def test_a_call_that_depends_on_the_number_of_earlier_calls_fails(engines: Engines) -> None:
    def fault(stream: Any, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "decode_step":
            outputs["hidden"] *= np.float32(1 + 1e-6 * stream.calls)

    assert "reset and replay" in failed(check_replay(engines.context(fault)))


def test_streams_that_share_their_states_fail(engines: Engines) -> None:
    context = engines.context(no_fault)
    one = context.engines.artifact.stream()
    assert failed(check_replay(with_artifact(context, lambda: one))) == ["two interleaved streams"]


def test_a_codec_that_ignores_its_position_fails(engines: Engines) -> None:
    context = engines.with_inputs(
        lambda name, inputs: inputs | ({"position": np.zeros(1, np.int64)} if "position" in inputs else {})
    )
    assert failed(check_streaming(context)) == ["codec.audio"]


def test_a_wrong_token_with_a_large_margin_fails(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name in ("prefill", "decode_step"):
            outputs["semantic_logits"][0, 7] = 2 * np.abs(outputs["semantic_logits"]).max()

    assert failed(codes_of(engines, engines.context(fault))) == ["codes, teacher-forced"]


def test_acoustic_values_half_a_level_off_fail(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "acoustic_step" and inputs["step"][0] == engines.constants.euler_steps - 1:
            outputs["next_x"] += 0.5 * 2 / (engines.constants.acoustic_levels - 1)

    assert failed(codes_of(engines, engines.context(fault))) == ["other codes, teacher-forced"]


def test_audio_that_is_not_finite_fails(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "codec_step":
            outputs["audio"][0, 5] = np.inf

    assert failed(free_run_of(engines, engines.context(fault))) == ["free run"]


def test_an_output_uncorrelated_with_full_precision_fails(engines: Engines) -> None:
    """Full precision is unrelated to eager. The bar of the recipe then fails."""

    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "prefill":
            outputs["hidden"] = outputs["hidden"][..., ::-1].copy()

    context = engines.context(no_fault, full=engines.faulty(fault), quantisation={"backbone": 0.45})
    assert failed(components_of(context, "prefill")) == ["prefill.hidden"]


def test_an_engine_that_raises_is_a_failed_check(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "embed_codes":
            raise ValueError("shapes do not fit")

    assert "stopped" in failed(check_components(engines.context(fault)))


def off_by(fraction: float, array: np.ndarray) -> np.ndarray:
    """Adds a fraction of the largest value everywhere. A rounding tie may do this to one value."""
    found: np.ndarray = array + np.float32(fraction) * np.abs(array).max()
    return found


def test_an_error_at_the_longest_size_only_fails(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "prefill" and outputs["hidden"].shape[1] == MAX_ROWS:
            outputs["hidden"] = off_by(0.04, outputs["hidden"])

    assert failed(components_of(engines.context(fault), "prefill")) == ["prefill.hidden"]


def test_an_error_in_some_channels_fails(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "decode_step":
            some = outputs["hidden"].shape[-1] * 2 // 5
            outputs["hidden"][..., :some] = off_by(0.04, outputs["hidden"])[..., :some]

    assert "decode_step.hidden" in failed(components_of(engines.context(fault), "decode_step"))


def test_an_error_in_some_steps_fails(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "decode_step" and 40 <= inputs["position"][0] < 80:
            outputs["hidden"] = off_by(0.04, outputs["hidden"])

    assert "decode_step.hidden" in failed(check_long_runs(engines.context(fault), STEPS))


def test_caches_whose_values_decay_fail(engines: Engines) -> None:
    """The change in each step is less than any bar."""

    def fade(states: Arrays) -> None:
        for name, array in states.items():
            if "cache" in name:
                array *= np.float32(1 - 1e-6)

    def fault(stream: Any, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "decode_step":
            stream.change_states(fade)

    assert "written rows" in failed(check_long_runs(engines.context(fault), STEPS))


def test_a_prefill_that_fails_at_later_positions_fails(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "prefill" and inputs["position"][0]:
            outputs["hidden"][:] = 0

    assert failed(components_of(engines.context(fault), "prefill")) == ["prefill.hidden"]


def test_a_codec_with_an_error_in_long_calls_only_fails(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "codec_step" and inputs["codes"].shape[1] > MAX_ROWS:
            outputs["audio"] = off_by(0.12, outputs["audio"])

    context = engines.context(fault)
    assert failed(components_of(context, "codec_step")) == []
    assert failed(check_streaming(context)) == ["codec.audio"]


def test_a_wrong_token_with_a_small_margin_fails(engines: Engines) -> None:
    """The margin is 3 % of the largest logit, which is more than ties change."""

    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name in ("prefill", "decode_step"):
            logits = outputs["semantic_logits"][0]
            live = logits[1 : 2 + engines.constants.semantic_codes]
            first, second = np.argsort(live)[::-1][:2]
            live[second] = live[first] + 0.03 * np.abs(live).max()

    assert failed(codes_of(engines, engines.context(fault))) == ["codes, teacher-forced"]


def test_a_free_run_without_frames_passes_only_if_eager_ends_there_too(engines: Engines) -> None:
    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == "prefill":
            outputs["semantic_logits"][0, 1] = 1e3

    assert failed(free_run_of(engines, engines.context(fault, eager=engines.faulty(fault)))) == []
    assert failed(free_run_of(engines, engines.context(fault))) == ["free run"]


def test_checks_without_sequences_are_reported_as_left_out(engines: Engines) -> None:
    context = replace(engines.context(no_fault), plan=VerificationPlan())
    results: list[Any] = [*check_long_runs(context, STEPS), *check_streaming(context)]
    assert [(result.name, result.left_out) for result in results] == [
        ("long run", True),
        ("chunks equal whole", True),
    ]


def test_a_check_that_was_left_out_is_not_counted_as_one_that_holds() -> None:
    absent = Check("long run", True, "the family has no decoder", left_out=True)
    lines = table(VerificationResult((Check("free run", True, "finite"), absent), {})).splitlines()
    assert "-      long run: left out, the family has no decoder" in lines
    assert lines[-1] == "passed: 1 of 1 checks hold, 1 left out"
    assert absent.row()["left_out"] and "left_out" not in Check("free run", True, "finite").row()
