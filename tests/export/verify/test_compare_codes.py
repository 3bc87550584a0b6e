"""Codes may differ from eager's where their logits are near, and in as many steps as chance explains."""

import numpy as np
import pytest

from voxport.export.verify.code_checks import compare_codes
from voxport.export.verify.comparison import most_by_chance

STEPS, CODES, ROUNDING = 40, 256, 0.03  # a logit has a deviation of 1


def logits(seed: int, rounding: float = ROUNDING) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits without rounding, those of eager, and those of an artifact that rounds independently."""
    generator = np.random.default_rng(seed)
    exact = generator.standard_normal((STEPS, CODES))
    eager, artifact = (exact + rounding * generator.standard_normal(exact.shape) for _ in range(2))
    return exact, eager, artifact


def replace_near(codes: np.ndarray, eager: np.ndarray, bar: float, count: int) -> np.ndarray:
    """The codes with `count` of them replaced by eager's runner-up, where it is within the bar."""
    second, first = np.sort(eager, axis=1)[:, -2:].T
    near = np.flatnonzero(first - second <= bar)[:count]
    assert len(near) == count
    found = codes.copy()
    found[near] = np.argsort(eager[near], axis=1)[:, -2]
    return found


@pytest.mark.parametrize(
    ("found", "passed"), [([1, 0], True), ([0, 0], True), ([2, 0], False), ([1, 1], False)]
)
def test_a_code_may_differ_only_where_its_own_logit_is_near_the_largest(
    found: list[int], passed: bool
) -> None:
    """In the first step two logits of three are near each other, in the second none. The bar is 0.1."""
    values = np.array([[0.95, 1.0, 0.5], [1.0, 0.5, 0.0]])
    check = compare_codes(values, np.array(found), None, 0.05)
    assert check.passed is passed and "1 of all steps" in check.detail


def test_half_of_the_codes_replaced_by_runners_up_within_the_bar_fail() -> None:
    """Rounding moves the largest logit by about 0.1 from another one, so the bar of every step is about 0.2.
    Of two artifacts that round independently, some 3 of 40 codes differ.
    """
    exact, eager, artifact = logits(0)
    right = compare_codes(eager, artifact.argmax(axis=1), exact, 1e-4)
    assert right.passed
    wrong = compare_codes(eager, replace_near(eager.argmax(axis=1), eager, 0.15, 16), exact, 1e-4)
    assert not wrong.passed and "24 of 40 equal" in wrong.detail


@pytest.mark.parametrize("rounding", [0.01, 0.03, 0.1])
def test_artifacts_that_round_independently_pass(rounding: float) -> None:
    for seed in range(100):
        exact, eager, artifact = logits(seed, rounding)
        assert compare_codes(eager, artifact.argmax(axis=1), exact, 1e-4).passed


def test_a_step_that_rounding_moves_far_does_not_excuse_the_others() -> None:
    exact, eager, _ = logits(2)
    exact[0] += 50 * (exact[0] - eager[0])  # by about 4
    codes = eager.argmax(axis=1)
    assert compare_codes(eager, codes, exact, 1e-4).passed
    codes[1] = np.argsort(eager[1])[0]  # about 6 below the largest one
    assert not compare_codes(eager, codes, exact, 1e-4).passed


def test_the_codes_that_chance_changes_follow_from_the_distances_of_their_logits() -> None:
    """One pair of logits per step, which float sums move by 0.01 / 3 each. Pairs 0.005 apart change with a
    probability of Φ(-0.005 / (√2 · 0.01 / 3)) = 0.144, those 0.1 apart never.
    """
    near, far = [[1.0, 0.995]] * 10, [[1.0, 0.9]] * 30
    assert most_by_chance([0.144] * 10) == 6
    codes = np.zeros(40, np.int64)
    for different, passed in ((6, True), (7, False)):
        codes[:different] = 1
        assert compare_codes(np.array(near + far), codes, None, 0.01).passed is passed
