"""How far a result may be from eager: the bars, what chance explains, and what is printed."""

import json
from math import comb

import numpy as np
import pytest

from voxport.bundle.manifest import WeightError
from voxport.export.verify import code_checks, comparison, page, run_checks
from voxport.export.verify.comparison import (
    Assertion,
    Comparison,
    gains,
    most_by_chance,
)
from voxport.export.verify.manifest_check import check_weight_errors
from voxport.export.verify.result import VerificationResult, failures, summary


@pytest.mark.parametrize("field", ["searched", "min_max"])
def test_weight_errors_may_differ_by_the_order_of_sums_only(field: str) -> None:
    measured = {"backbone": WeightError(searched=0.08, min_max=0.09)}

    def failed(stored: dict[str, WeightError]) -> list[str]:
        return [check.name for check in check_weight_errors(stored, measured)]

    value = getattr(measured["backbone"], field)
    for factor, is_close in ((1 + 2e-5, True), (1 + 2e-4, False), (0, False), (float("nan"), False)):
        stored = {"backbone": measured["backbone"].model_copy(update={field: value * factor})}
        assert failed(stored) == ([] if is_close else ["weight error of backbone"])
    assert failed({}) == ["weight error of backbone"]
    assert failed(measured | {"codec": measured["backbone"]}) == ["weight error of codec"]


ONES = np.ones(4)


def compare_ones(integer: bool, *errors: float, rounding: float = 0.0, perturbed: float = 0.0) -> Comparison:
    """A comparison with a call for each error of all values, and eager as far from itself as given."""
    compared = Comparison("c", "o", "check", integer)
    for error in errors:
        others = (ONES + rounding, ONES + perturbed) if integer else ()
        compared.add(ONES + error, ONES, *others)
    return compared


@pytest.mark.parametrize("integer", [False, True])
def test_a_comparison_without_a_call_fails(integer: bool) -> None:
    empty = Comparison("c", "o", "check", integer)
    assert not empty.passed and json.loads(json.dumps(empty.row()))["lowering_error"] is None


def test_the_numbers_that_bars_are_made_of_are_those_of_the_documentation() -> None:
    """Faults of the other tests have fixed sizes, so a larger bar hides them."""
    assert (comparison.FLOAT_BAR, comparison.FLOAT16_BAR) == (1e-4, 2e-2)
    assert (comparison.ROUNDING_FACTOR, comparison.RARE, comparison.FEW_TIES) == (2, 1e-3, 0.25)
    assert pytest.approx(0.0447, abs=1e-4) == comparison.FLOAT16_DISTANCE_BAR  # a correlation of 0.999
    assert run_checks.GROWTH == 7
    assert (code_checks.FLOAT_DEVIATIONS, code_checks.NEAREST, code_checks.MOST_STEPS) == (3, 16, 0.9)
    assert code_checks.GROSS_FACTOR == 10


def test_with_float_activations_no_call_may_exceed_one_ten_thousandth() -> None:
    assert compare_ones(False, *[0.9e-4] * 10).passed
    assert not compare_ones(False, *[0.0] * 9, 1.1e-4).passed


def test_with_integer_activations_no_call_may_exceed_twice_the_effect_of_rounding() -> None:
    assert compare_ones(True, *[0.0] * 99, 1.9e-3, rounding=1e-3).passed
    assert not compare_ones(True, *[0.0] * 99, 2.1e-3, rounding=1e-3).passed
    # rounding that changes nothing leaves the bar of floats
    assert compare_ones(True, *[0.9e-4] * 10).passed
    assert not compare_ones(True, *[0.0] * 99, 1.1e-4).passed


def test_an_error_in_every_call_fails_where_eager_meets_few_ties() -> None:
    errors = [1.1e-4] * 48
    assert not compare_ones(True, *errors, rounding=1e-2).passed
    assert compare_ones(True, *errors, rounding=1e-2, perturbed=1e-3).passed  # each call may meet a tie
    # of 48 fair coins, more than 35 show heads with a probability of 4e-4, more than 34 with 1.4e-3
    assert compare_ones(True, *errors, rounding=1e-2).beyond_allowed == 35 / 48


def binomial(calls: int, probability: float) -> list[float]:
    return [
        comb(calls, count) * probability**count * (1 - probability) ** (calls - count)
        for count in range(calls + 1)
    ]


def test_what_chance_explains_is_the_tail_of_a_binomial_distribution() -> None:
    for calls, probability in [(4, 0.5), (24, 0.71), (100, 0.8), (48, 0.02)]:
        allowed = most_by_chance([probability] * calls)
        chances = binomial(calls, probability)
        assert sum(chances[allowed + 1 :]) <= 1e-3 < sum(chances[allowed:])
    assert most_by_chance([1.0] * 24) == 24 and most_by_chance([0.0] * 24) == most_by_chance([]) == 0
    assert 2606 <= most_by_chance([0.5] * 5000) <= 2612  # 3.09 standard deviations of 35.4 above 2,500


CHANNELS = 3072  # of the published backbone


def compare_gain(
    seed: int, rounding: float, gain: float = 1.0, half: slice = slice(0, CHANNELS // 2)
) -> Comparison:
    """One call. The artifact and eager are rounded independently of each other; a half of the artifact has a
    gain.
    """
    rng = np.random.default_rng(seed)
    exact = rng.standard_normal((1, CHANNELS))
    found, eager = (exact + rounding * rng.standard_normal(exact.shape) for _ in range(2))
    found[:, half] *= gain
    compared = Comparison("decode_step", "hidden", "outputs", integer_activations=True)
    compared.add(found, eager, exact, found)
    return compared


def test_no_right_artifact_fails() -> None:
    assert all(compare_gain(seed, 0.1).passed for seed in range(300))


@pytest.mark.parametrize("half", [slice(0, CHANNELS // 2), slice(CHANNELS // 2, None)])
@pytest.mark.parametrize("gain", [0.94, 1.06])
def test_a_gain_of_6_percent_of_half_of_the_channels_is_found_in_one_call(gain: float, half: slice) -> None:
    """Rounding is more than in 26 layers of the published width. The distance alone finds no gain."""
    for seed in range(50):
        compared = compare_gain(seed, 0.1, gain, half)
        assert compared.distance <= (compared.distance_bar or 0)
        assert not compared.passed and compared.margin < 1
        assert "gain" in failures(VerificationResult((compared,), {}))[0]


def test_a_rounding_of_few_values_moves_the_gain_of_many_logits() -> None:
    """Logits of 50 times as many channels as the decoder has: their errors depend on each other.

    A gain of 2 % of one half is still found. Without `inputs`, two of the right ones fail.
    """
    rng = np.random.default_rng(0)
    width = 128
    weight = rng.standard_normal((width, 50 * width))
    failed = found = 0
    for _ in range(200):
        hidden = rng.standard_normal((1, width))
        artifact, eager = (hidden + 0.004 * rng.standard_normal(hidden.shape) for _ in range(2))
        logits = artifact @ weight, eager @ weight, hidden @ weight
        for factor in (1.0, 1.02):
            compared = Comparison("decode_step", "logits", "outputs", integer_activations=True, inputs=width)
            half = np.where(np.arange(50 * width) < 25 * width, factor, 1.0)
            compared.add(logits[0] * half, logits[1], logits[2], logits[0])
            failed += factor == 1.0 and not compared.passed
            found += factor != 1.0 and not compared.passed
    assert failed == 0 and found == 200


@pytest.mark.parametrize(("gain", "passes"), [(1.019, True), (1.03, False)])
def test_rounding_may_move_many_channels_together(gain: float, passes: bool) -> None:
    """The artifact by twice as much as rounding does."""
    eager = np.random.default_rng(0).standard_normal((1, CHANNELS))
    compared = Comparison("decode_step", "hidden", "outputs", integer_activations=True)
    compared.add(eager * gain, eager, eager * 1.01, eager)
    compared.rounding[0] = compared.rounding[0]._replace(norm=1.0)  # the distance decides nothing here
    assert compared.passed == passes


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (np.ones((1, 4)), np.ones((1, 5))),
        (np.array([[1, np.inf]]), np.ones((1, 2))),
        (np.ones((3, 1)), np.ones((3, 1))),
        (np.array(1.0), np.array(1.0)),
    ],
)
def test_values_without_halves_have_no_gain(found: np.ndarray, expected: np.ndarray) -> None:
    assert gains(found, expected, expected) == []


def compared(component: str, error: float, output: str = "hidden") -> Comparison:
    """One call whose largest error is `error`, relative to a largest value of 1."""
    found = Comparison(component, output, "outputs", integer_activations=False, quantisation_bar=0.45)
    expected = np.linspace(0, 1, 8, dtype=np.float64)
    found.add(expected + error, expected, full=1.25 * expected)
    return found


def lines(*rows: Comparison | Assertion) -> list[str]:
    return summary(VerificationResult(rows, {})).splitlines()


def test_the_verdict_comes_first_then_the_nearest_comparison() -> None:
    left_out = Assertion("long run", True, "no decoder", left_out=True)
    found = lines(
        compared("prefill", 1e-6), compared("step", 5e-5), Assertion("free run", True, "ok"), left_out
    )
    assert found[0] == "passed: the artifacts match eager PyTorch in all 3 checks; 1 left out"
    assert found[1] == "Closest: step.hidden (outputs) could be 2.0 times as far from eager and still pass."


def test_a_component_has_one_line_with_the_output_nearest_to_its_bar() -> None:
    found = lines(compared("prefill", 1e-6), compared("step", 1e-6, "logits"), compared("step", 4e-5))
    table = [line.split() for line in found[4:6]]
    assert [row[0] for row in table] == ["prefill", "step"]
    assert table[1][1:3] == ["4.0e-05", "1.0e-04"]
    assert table[1][3:5] == ["2.0e-01", "4.5e-01"]  # a quarter too small: 0.25 / 1.25 of the norm
    assert table[1][5:] == ["hidden", "(outputs),", "error"]


def test_failures_are_named_below_the_verdict() -> None:
    found = lines(compared("prefill", 2e-4), Assertion("codec", False, "weights differ"))
    assert found[0] == "failed: 2 of 2 checks do not hold"
    assert found[1].startswith("  prefill.hidden (outputs): 2.0 times what is allowed")
    assert found[2] == "  codec: weights differ" and found[3] == "Worst: prefill.hidden (outputs)."
    assert found[6].endswith("FAILED")


def test_an_infinite_error_is_drawn_too() -> None:
    expected = np.linspace(0, 1, 8)
    row = Comparison("step", "hidden", "20 steps", integer_activations=False)
    for _ in range(20):
        row.add(np.full(8, np.nan), expected)
    errors, drift = (chart.svg for chart in page.charts([row], {}, {}))
    assert f"fill: {page.BAD}" in errors and f"fill: {page.GOOD}" not in errors
    assert "nan" not in drift and "inf" not in drift
