"""A gain of half of the channels is found below rounding that moves every channel by more."""

import numpy as np
import pytest

from voxport.export.verify.comparison import Comparison
from voxport.export.verify.gain import gains
from voxport.export.verify.report import VerificationResult, failures

CHANNELS = 3072  # of the published backbone


def compare(
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
    assert all(compare(seed, 0.1).passed for seed in range(300))


@pytest.mark.parametrize("half", [slice(0, CHANNELS // 2), slice(CHANNELS // 2, None)])
@pytest.mark.parametrize("gain", [0.94, 1.06])
def test_a_gain_of_6_percent_of_half_of_the_channels_is_found_in_one_call(gain: float, half: slice) -> None:
    """Rounding is more than in 26 layers of the published width. The distance alone finds no gain."""
    for seed in range(50):
        compared = compare(seed, 0.1, gain, half)
        assert compared.distance <= (compared.distance_bar or 0)
        assert not compared.passed and compared.margin < 1
        assert "gain" in failures(VerificationResult((compared,), {}))[0]


@pytest.mark.parametrize(("gain", "passes"), [(1.019, True), (1.03, False)])
def test_rounding_may_move_many_channels_together(gain: float, passes: bool) -> None:
    """The artifact by twice as much as rounding does."""
    eager = np.random.default_rng(0).standard_normal((1, CHANNELS))
    compared = Comparison("decode_step", "hidden", "outputs", integer_activations=True)
    compared.add(eager * gain, eager, eager * 1.01, eager)
    compared.rounding[0] = compared.rounding[0]._replace(norm=1.0)  # the distance decides nothing here
    assert compared.passed == passes


def test_the_stored_row_has_the_half_that_is_nearest_to_its_bar() -> None:
    row = compare(0, 0.1, 1.06, slice(CHANNELS // 2, None)).row()
    assert row["gain"] == pytest.approx(0.06, abs=0.01)
    assert row["margin"] == pytest.approx(row["gain_bar"] / row["gain"])


def test_with_float_activations_there_is_no_gain() -> None:
    compared = Comparison("codec", "audio", "outputs", integer_activations=False)
    compared.add(np.ones((1, 8)), np.ones((1, 8)))
    assert compared.gain is None and compared.row()["gain_bar"] is None


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


def test_expected_zeros_have_no_gain() -> None:
    assert {gain.value for gain in gains(np.ones((1, 8)), np.ones((1, 8)), np.zeros((1, 8)))} == {0}
