"""The bars of values that codes are rounded from, with errors of known size."""

import numpy as np
import pytest

from export.verify.code_checks import compare_values
from export.verify.comparison import FLOAT16_BAR, FLOAT_BAR, ROUNDING_FACTOR
from runtime.families.base import ForcedRun

CALLS = 8
VALUES = np.random.default_rng(0).uniform(-1, 1, (40, 24)).astype(np.float32)
NOISE = np.random.default_rng(1).standard_normal(VALUES.shape).astype(np.float32)
LARGEST, MEAN = np.abs(VALUES).max(), np.sqrt(np.square(VALUES).mean())  # root mean square


def run_of(values: np.ndarray) -> ForcedRun:
    codes = np.concatenate((np.zeros((40, 1)), values.round()), axis=1).astype(np.int64)
    return ForcedRun(codes, np.zeros((40, 2)), np.zeros((40, 1)), values=values, value_calls=CALLS)


def passes(found: np.ndarray, unrounded: np.ndarray | None = None, bar: float = FLOAT_BAR) -> bool:
    other = None if unrounded is None else run_of(unrounded)
    return compare_values(run_of(VALUES), run_of(found), other, bar).passed


def one_moved(by: float) -> np.ndarray:
    found = VALUES.copy()
    found[3, 4] += by
    return found


@pytest.mark.parametrize("bar", [FLOAT_BAR, FLOAT16_BAR])
def test_each_call_may_add_its_error_to_one_value(bar: float) -> None:
    most = CALLS * bar * LARGEST
    assert passes(one_moved(0.9 * most), bar=bar)
    assert not passes(one_moved(1.1 * most), bar=bar)


@pytest.mark.parametrize("bar", [FLOAT_BAR, FLOAT16_BAR])
def test_errors_of_all_values_add_as_independent_ones(bar: float) -> None:
    most = CALLS**0.5 * bar * MEAN
    assert passes(VALUES + 0.9 * most, bar=bar)
    assert not passes(VALUES + 1.1 * most, bar=bar), "far below the bar of the largest difference"


def rounding_of(seed: int) -> np.ndarray:
    """Errors with a few steps that are far larger than the others, as trained models have them."""
    generator = np.random.default_rng(seed)
    of_steps = 0.02 * np.abs(generator.standard_t(1.5, (40, 1)))
    found: np.ndarray = of_steps * generator.standard_normal(VALUES.shape)
    return found


def planted(difference: np.ndarray) -> list[bool]:
    """Whether artifacts with this error beside their own rounding pass."""
    sides = [(rounding_of(seed), rounding_of(1000 + seed)) for seed in range(20)]
    return [passes(VALUES + artifact + difference, VALUES + eager) for eager, artifact in sides]


def test_no_artifact_that_rounds_independently_fails() -> None:
    largest = 0
    for seed in range(300):
        artifact, eager = rounding_of(seed), rounding_of(1000 + seed)
        assert passes(VALUES + artifact, VALUES + eager), seed
        largest += np.abs(artifact - eager).max() > ROUNDING_FACTOR * np.abs(eager).max()
    assert largest > 30, "the bar of the largest difference would fail many"


def test_an_error_larger_than_the_rounding_of_every_value_fails() -> None:
    assert not any(planted(np.full(VALUES.shape, 0.2)))


def test_an_error_of_one_code_book_fails() -> None:
    of_one = np.zeros(VALUES.shape)
    of_one[:, 7] = 0.4
    assert not any(planted(of_one)), "one value of 24"


def test_an_error_of_every_fourth_step_fails() -> None:
    of_steps = np.zeros(VALUES.shape)
    of_steps[::4] = 50
    assert not any(planted(of_steps)), "10 of 40 steps"


def test_float_sums_may_add_their_bar_to_the_rounding() -> None:
    most = CALLS * FLOAT_BAR * LARGEST
    assert passes(VALUES + 0.9 * most, VALUES)
    assert not passes(VALUES + 1.1 * most, VALUES)


def test_values_that_mean_nothing_fail() -> None:
    assert not passes(VALUES[::-1].copy(), bar=FLOAT16_BAR)
    assert not passes(one_moved(np.nan), VALUES + NOISE)
