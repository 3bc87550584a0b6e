"""The bars of values that codes are rounded from, with errors of known size."""

import numpy as np
import pytest

from voxport.export.verify.code_checks import compare_values
from voxport.export.verify.comparison import FLOAT16_BAR, FLOAT_BAR, ROUNDING_FACTOR
from voxport.runtime.families.workload import ForcedRun

CALLS = 8
VALUES = np.random.default_rng(0).uniform(-1, 1, (40, 24)).astype(np.float32)
NOISE = np.random.default_rng(1).standard_normal(VALUES.shape).astype(np.float32)
LARGEST, MEAN = np.abs(VALUES).max(), np.sqrt(np.square(VALUES).mean())  # root mean square


def run_of(values: np.ndarray) -> ForcedRun:
    rounded = np.nan_to_num(values.round(), posinf=0)
    codes = np.concatenate((np.zeros((len(values), 1)), rounded), axis=1).astype(np.int64)
    logits, hidden = np.zeros((len(values), 2)), np.zeros((len(values), 1))
    return ForcedRun(codes, logits, hidden, values=values, value_calls=CALLS)


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


def rounding_of(seed: int, of_steps: np.ndarray | None = None) -> np.ndarray:
    """Errors of 0.02 in most steps and of far more in a few, as in trained models."""
    generator = np.random.default_rng(seed)
    if of_steps is None:
        of_steps = 0.02 * np.abs(generator.standard_t(2, (40, 1)))
    found: np.ndarray = of_steps * generator.standard_normal(VALUES.shape)
    return found


def passes_with(error: np.ndarray, eager: np.ndarray, artifact: np.ndarray) -> bool:
    """Whether an artifact passes that has this error. `eager` and `artifact` are their own roundings."""
    return passes(VALUES - eager + artifact + error, VALUES - eager)


@pytest.mark.parametrize("steps_are_alike", [True, False])
def test_no_artifact_that_rounds_independently_fails(steps_are_alike: bool) -> None:
    """Even where a step that rounding moves far in eager is another one than in the artifact."""
    larger = 0
    for seed in range(300):
        eager = rounding_of(seed)
        scales = np.abs(eager).mean(axis=1, keepdims=True) if steps_are_alike else None
        artifact = rounding_of(1000 + seed, scales)
        assert passes_with(0 * VALUES, eager, artifact), seed
        larger += np.abs(artifact - eager).max() > ROUNDING_FACTOR * np.abs(eager).max()
    assert steps_are_alike or larger > 30, "the largest difference would fail many"


@pytest.mark.parametrize(
    ("place", "size"),
    [
        ((slice(None), slice(None)), 0.1),  # five times the usual rounding
        ((slice(None), 7), 0.5),  # one code book of 24
        ((11, slice(None)), 20),  # one step
    ],
)
def test_an_error_is_found_beside_any_roundings(place: tuple[int | slice, int | slice], size: float) -> None:
    error = np.zeros(VALUES.shape)
    error[place] = size
    assert not any(passes_with(error, rounding_of(seed), rounding_of(1000 + seed)) for seed in range(20))


def test_the_limits_of_the_counts() -> None:
    """30 of 40 steps, and 32 of one code book."""
    rounding = np.full(VALUES.shape, 0.01)
    for axis, most in ((slice(None), 30), (7, 32)):
        error = np.zeros(VALUES.shape)
        error[:most, axis] = 0.022
        assert passes_with(error, rounding, rounding)
        error[: most + 1, axis] = 0.022
        assert not passes_with(error, rounding, rounding)


def test_values_that_no_rounding_moves_have_the_bars_of_floats() -> None:
    for unrounded in (None, VALUES):
        assert passes(one_moved(0.9 * CALLS * FLOAT_BAR * LARGEST), unrounded)
        assert not passes(one_moved(1.1 * CALLS * FLOAT_BAR * LARGEST), unrounded)


def test_values_that_mean_nothing_fail() -> None:
    assert not passes(VALUES[::-1].copy(), bar=FLOAT16_BAR)
    assert not passes(one_moved(np.nan), VALUES + NOISE)
    assert not passes(VALUES, VALUES + NOISE + one_moved(np.inf))
