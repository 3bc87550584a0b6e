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


def test_integer_activations_may_move_values_by_a_factor_of_their_rounding() -> None:
    unrounded = VALUES + 0.01 * NOISE
    assert passes(VALUES + ROUNDING_FACTOR * 0.01 * NOISE, unrounded)
    assert not passes(VALUES + 1.2 * ROUNDING_FACTOR * 0.01 * NOISE, unrounded)
    assert not passes(VALUES + 1.2 * ROUNDING_FACTOR * 0.01, unrounded), "all in one direction"


def test_values_that_mean_nothing_fail() -> None:
    assert not passes(VALUES[::-1].copy(), bar=FLOAT16_BAR)
    assert not passes(one_moved(np.nan), VALUES + NOISE)
