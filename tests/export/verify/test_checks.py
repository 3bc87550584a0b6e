"""The checks find faults in engines. The artifact is eager with a fault added."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.export.faulty_engines import CACHE, Engines, Fault, failed, measurements, no_fault, with_artifact

from voxport.export.verify.checks import CHECKS
from voxport.export.verify.code_checks import OTHER_CODES, check_codes
from voxport.export.verify.comparison import Result
from voxport.export.verify.component_checks import check_components, check_last_positions, check_streaming
from voxport.export.verify.context import Context
from voxport.export.verify.modes import MAX_ROWS, SAMPLE
from voxport.export.verify.run_checks import check_free_run, check_long_runs, check_replay
from voxport.model.family import VerificationPlan
from voxport.runtime.engines.base import Arrays, Stream

STEPS = 100
Run = Callable[[Context], Iterable[Result]]


def components_of(name: str) -> Run:
    """The check of the components that share the graph of `name`."""

    def run(context: Context) -> Iterable[Result]:
        graph = context.components[name].graph
        kept = {key: part for key, part in context.components.items() if part.graph == graph}
        return check_components(replace(context, components=kept))

    return run


def test_without_a_fault_every_check_passes(engines: Engines) -> None:
    context = engines.context(no_fault)
    found = {check.name: list(check.run(context)) for check in CHECKS if check.name != "long codes"}
    assert [name for results in found.values() for name in failed(results)] == []
    equal = measurements(found["codes"])["codes, artifact and eager"]
    assert equal == {"codes_equal": 1.0, "other_codes_equal": 1.0}
    assert measurements(found["free run"])["free run, artifact and eager"]["log_mel_distance_db"] == 0


def changed(component: str, change: Callable[[Any, Arrays, Arrays], object]) -> Fault:
    """`change(stream, inputs, outputs)` after every call of a component."""

    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name == component:
            change(stream, inputs, outputs)

    return fault


def off_by(
    component: str, output: str, fraction: float, when: Callable[[Arrays], object] = lambda inputs: True
) -> Fault:
    """Adds a fraction of the largest value everywhere. A rounding tie may do this to one value."""

    def change(stream: Stream, inputs: Arrays, outputs: Arrays) -> None:
        if when(inputs):
            outputs[output] += np.float32(fraction) * np.abs(outputs[output]).max()

    return changed(component, change)


def position(inputs: Arrays) -> int:
    return int(inputs["position"][0])


def swap_outputs(stream: Stream, inputs: Arrays, outputs: Arrays) -> None:
    outputs["condition"], outputs["semantic_logits"] = outputs["semantic_logits"], outputs["condition"]


def lose_a_row(stream: Any, inputs: Arrays, outputs: Arrays) -> None:
    """One of at least 24 rows. A median over rows, or a cache of zeros, would hide it."""
    stream.change_states(lambda states: states["k_cache_0"][:, position(inputs)].fill(0))


def write_beyond_the_position(stream: Any, inputs: Arrays, outputs: Arrays) -> None:
    stream.change_states(lambda states: states["v_cache_0"][:, -1].fill(1e-6))


def lose_the_first_row(stream: Any, inputs: Arrays, outputs: Arrays) -> None:
    """At one of 100 steps."""
    if position(inputs) == MAX_ROWS + 80:
        stream.change_states(
            lambda states: [array[:, 0].fill(0) for name, array in states.items() if "cache" in name]
        )


def fade(stream: Any, inputs: Arrays, outputs: Arrays) -> None:
    """The change in each step is less than any bar."""

    def decay(states: Arrays) -> None:
        for name, array in states.items():
            if "cache" in name:
                array *= np.float32(1 - 1e-6)

    stream.change_states(decay)


def count_calls(stream: Any, inputs: Arrays, outputs: Arrays) -> None:
    outputs["hidden"] *= np.float32(1 + 1e-6 * stream.calls)


def some_channels(stream: Stream, inputs: Arrays, outputs: Arrays) -> None:
    some = outputs["hidden"].shape[-1] * 2 // 5
    outputs["hidden"][..., :some] += 0.04 * np.abs(outputs["hidden"]).max()


def large_margin(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
    if name in ("prefill", "decode_step"):
        outputs["semantic_logits"][0, 7] = 2 * np.abs(outputs["semantic_logits"]).max()


def no_finite_audio(stream: Stream, inputs: Arrays, outputs: Arrays) -> None:
    outputs["audio"][0, 5] = np.inf


def raise_an_error(stream: Stream, inputs: Arrays, outputs: Arrays) -> None:
    raise ValueError("shapes do not fit")


# the fault, the check, and all that it finds
FAULTS: dict[str, tuple[Fault, Run, list[str]]] = {
    # With integers, about half of the calls of the codec meet a tie, and more on some processors. A fault in
    # its output is found on every processor if it exceeds twice the effect of rounding (0.05).
    **{
        f"every call of {component}": (
            off_by(component, output, size),
            components_of(component),
            [f"{component}.{output}"],
        )
        for component, output, size in (
            ("embed_text", "embeddings", 1e-3),
            ("prefill", "hidden", 1e-3),
            ("decode_step", "semantic_logits", 1e-3),
            ("acoustic_step", "velocity", 1e-3),
            ("codec_step", "audio", 0.1),
        )
    },
    "swapped outputs, of other shapes": (
        changed("prefill", swap_outputs),
        components_of("prefill"),
        ["stopped"],
    ),
    "a row of a cache that is not written": (
        changed("decode_step", lose_a_row),
        components_of("decode_step"),
        ["decode_step.states"],
    ),
    "a row beyond the position": (
        changed("prefill", write_beyond_the_position),
        components_of("prefill"),
        ["prefill: rows that are not written"],
    ),
    "the longest size": (
        off_by("prefill", "hidden", 0.04, lambda inputs: inputs["embeddings"].shape[1] == MAX_ROWS),
        components_of("prefill"),
        ["prefill.hidden"],
    ),
    "some channels": (
        changed("decode_step", some_channels),
        components_of("decode_step"),
        ["decode_step.hidden"],
    ),
    "later positions": (
        off_by("prefill", "hidden", 1, position),
        components_of("prefill"),
        ["prefill.hidden"],
    ),
    "the last position of the step": (
        off_by("decode_step", "hidden", 1e-3, lambda inputs: position(inputs) == CACHE - 1),
        check_last_positions,
        ["decode_step.hidden"],
    ),
    "the last position of the prefill": (
        off_by("prefill", "hidden", 1e-3, lambda inputs: position(inputs) == CACHE - 1),
        check_last_positions,
        ["prefill.hidden"],
    ),
    "long calls of the codec": (
        off_by("codec_step", "audio", 0.12, lambda inputs: inputs["codes"].shape[1] > MAX_ROWS),
        check_streaming,
        ["codec.audio"],
    ),
    "a wrong token with a large margin": (
        large_margin,
        check_codes,
        ["codes, teacher-forced"],
    ),
    "audio that is not finite": (changed("codec_step", no_finite_audio), check_free_run, ["free run"]),
}


@pytest.mark.parametrize(("fault", "check", "found"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found(engines: Engines, fault: Fault, check: Run, found: list[str]) -> None:
    assert failed(check(engines.context(fault))) == found


@pytest.mark.parametrize(
    ("fault", "check", "found"),
    [
        (changed("decode_step", lose_the_first_row), check_long_runs, "decode_step.states"),
        (
            off_by("decode_step", "hidden", 0.04, lambda inputs: 40 <= position(inputs) < 80),
            check_long_runs,
            "decode_step.hidden",
        ),
        (changed("decode_step", fade), check_long_runs, "written rows"),
        (changed("decode_step", count_calls), check_replay, "reset and replay"),
        (changed("embed_codes", raise_an_error), check_components, "stopped"),
    ],
)
def test_a_fault_is_found_among_others(engines: Engines, fault: Fault, check: Run, found: str) -> None:
    assert found in failed(check(engines.context(fault)))


def test_one_wrong_euler_step_is_found_in_a_sample(engines: Engines) -> None:
    """A sample has one seed, and calls every step."""
    for wrong in range(engines.constants.euler_steps):

        def change(stream: Stream, inputs: Arrays, outputs: Arrays, wrong: int = wrong) -> None:
            if inputs["step"][0] == wrong:
                outputs["next_x"] *= 1.2

        sample = replace(engines.context(changed("acoustic_step", change)), extent=SAMPLE)
        assert failed(components_of("acoustic_step")(sample)) == ["acoustic_step.next_x"]


def test_nan_in_artifact_and_eager_fails(engines: Engines) -> None:
    def change(stream: Stream, inputs: Arrays, outputs: Arrays) -> None:
        outputs["next_x"][0, 3] = np.nan

    fault = changed("acoustic_step", change)
    context = engines.context(fault, eager=engines.faulty(fault))
    assert failed(components_of("acoustic_step")(context)) == ["acoustic_step.next_x"]


@pytest.mark.parametrize("engines", ["none"], indirect=True)
def test_an_error_that_grows_with_each_step_fails(engines: Engines) -> None:
    """The error is under the bar of 1e-4 at every step. At the end it is eight times a tenth of it.

    With integers, one tie near the start of the run leaves this check out.
    """

    def change(stream: Stream, inputs: Arrays, outputs: Arrays) -> None:
        growth = 8e-5 * min((position(inputs) - MAX_ROWS) / STEPS, 1) ** 2
        outputs["hidden"] += growth * np.abs(outputs["hidden"]).max()

    assert failed(check_long_runs(engines.context(changed("decode_step", change)))) == ["no drift"]


def test_a_stream_that_accepts_one_position_too_many_fails(engines: Engines) -> None:
    context = engines.with_inputs(
        lambda name, inputs: (
            inputs | ({"position": np.minimum(inputs["position"], CACHE - 1)} if "position" in inputs else {})
        )
    )
    assert set(failed(check_last_positions(context))) == {
        "prefill: one past the last position is refused",
        "decode_step: one past the last position is refused",
    }


def test_streams_that_share_their_states_fail(engines: Engines) -> None:
    context = engines.context(no_fault)
    one = context.engines.artifact.stream()
    assert failed(check_replay(with_artifact(context, lambda: one))) == ["two interleaved streams"]


def test_a_codec_that_ignores_its_position_fails(engines: Engines) -> None:
    context = engines.with_inputs(
        lambda name, inputs: inputs | ({"position": np.zeros(1, np.int64)} if "position" in inputs else {})
    )
    assert failed(check_streaming(context)) == ["codec.audio"]


def test_acoustic_values_half_a_level_off_fail(engines: Engines) -> None:
    def change(stream: Stream, inputs: Arrays, outputs: Arrays) -> None:
        if inputs["step"][0] == engines.constants.euler_steps - 1:
            outputs["next_x"] += 0.5 * 2 / (engines.constants.acoustic_levels - 1)

    assert failed(check_codes(engines.context(changed("acoustic_step", change)))) == [OTHER_CODES]


def test_a_wrong_token_with_a_small_margin_fails(engines: Engines) -> None:
    """The margin is 3 % of the largest logit, which is more than ties change."""

    def fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None:
        if name in ("prefill", "decode_step"):
            live = outputs["semantic_logits"][0][1 : 2 + engines.constants.semantic_codes]
            first, second = np.argsort(live)[::-1][:2]
            live[second] = live[first] + 0.03 * np.abs(live).max()

    assert failed(check_codes(engines.context(fault))) == ["codes, teacher-forced"]


def test_an_output_uncorrelated_with_full_precision_fails(engines: Engines) -> None:
    """Full precision is unrelated to eager. The bar of the recipe then fails."""

    def change(stream: Stream, inputs: Arrays, outputs: Arrays) -> None:
        outputs["hidden"] = outputs["hidden"][..., ::-1].copy()

    full = engines.faulty(changed("prefill", change))
    context = engines.context(no_fault, full=full, quantisation={"backbone": 0.45})
    assert failed(components_of("prefill")(context)) == ["prefill.hidden"]


def test_a_free_run_without_frames_passes_only_if_eager_ends_there_too(engines: Engines) -> None:
    def change(stream: Stream, inputs: Arrays, outputs: Arrays) -> None:
        outputs["semantic_logits"][0, 1] = 1e3

    fault = changed("prefill", change)
    assert failed(check_free_run(engines.context(fault, eager=engines.faulty(fault)))) == []
    assert failed(check_free_run(engines.context(fault))) == ["free run"]


def test_checks_without_sequences_are_reported_as_left_out(engines: Engines) -> None:
    context = replace(engines.context(no_fault), plan=VerificationPlan())
    results: list[Any] = [*check_long_runs(context), *check_streaming(context)]
    assert [(result.name, result.left_out) for result in results] == [
        ("long run", True),
        ("chunks equal whole", True),
    ]
