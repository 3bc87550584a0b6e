"""How far two results lie apart, and how far they may.

Two distances are never mixed: the *lowering error* of an artifact against eager with the same integers, scales and
activation arithmetic; and the *quantisation error* of that eager against full precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import inf, isfinite, sqrt
from typing import Any

import numpy as np


def distance_at(correlation: float) -> float:
    """|a - b| / |b| in the 2-norm, of two signals of equal size with that correlation."""
    return sqrt(2 * (1 - correlation))


FLOAT_BAR = 1e-4  # of the reference's largest value, as design.md sets it for float32
# Half precision rounds every value by up to 2^-12 of itself. Some 20 roundings in a layer, independent of each other, are sqrt(40) ·
# 2^-12 = 1.5e-3 after 2 layers, where the worst output has twice that (3e-3), and sqrt(520) · 2^-12 = 5.6e-3 after 26: the bar
# leaves those the same factor, and as much again. Besides, no call may fall below the design's correlation.
HALF_BAR, HALF_DISTANCE_BAR = 2e-2, distance_at(0.999)

# Integer activations: two float orders differ by 1 ulp before rounding, so now and then a value lands on the other side of
# a tie and moves a whole step, and what depends on it moves too, the more so the deeper the model. So eager is compared with
# itself as well, under another order of sums (in half precision where the artifact computes in that), and an artifact is held to `TIES` times that:
# - its typical value, most of which depend on no tie, to the float bar or that;
# - the share of its calls that lie beyond the float bar at all, to that and three standard deviations of a share over so few;
# - its worst call to a correlation of 0.999 or that.
TIES = 3.0
TIE_BAR = distance_at(0.999)
LOOSEST_BAR = distance_at(0.99)  # whatever eager makes of itself


@dataclass
class Comparison:
    """One output of one component over many calls: per call the largest and the median error, and the distance in the 2-norm."""

    component: str
    output: str
    check: str
    integer_activations: bool
    float_bar: float = FLOAT_BAR
    errors: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    ties: list[float] = field(default_factory=list)
    tie_medians: list[float] = field(default_factory=list)
    tie_distances: list[float] = field(default_factory=list)
    quantisation: list[float] = field(default_factory=list)
    quantisation_bar: float | None = None

    def add(self, found: np.ndarray, expected: np.ndarray, reordered: np.ndarray | None = None) -> None:
        """`reordered` is what eager makes of the same call under another order of float sums."""
        self.errors.append(lowering_error(found, expected))
        self.medians.append(lowering_error(found, expected, np.median))
        self.distances.append(relative_distance(found, expected))
        if reordered is not None:
            self.ties.append(lowering_error(reordered, expected))
            self.tie_medians.append(lowering_error(reordered, expected, np.median))
            self.tie_distances.append(relative_distance(reordered, expected))

    @property
    def typical(self) -> float:
        """Median over calls: of the largest error, or of the median one where ties may fall differently."""
        errors = self.medians if self.integer_activations else self.errors
        return float(np.median(errors)) if errors else inf

    @property
    def bar(self) -> float:
        """For the typical error."""
        return (
            min(max(self.float_bar, TIES * float(np.median(self.tie_medians))), LOOSEST_BAR)
            if self.tie_medians
            else self.float_bar
        )

    @property
    def worst(self) -> float:
        return max(self.errors, default=inf)

    @property
    def distance(self) -> float:
        """Of the worst call."""
        return max(self.distances, default=inf)

    @property
    def beyond(self) -> float:
        """Share of the calls whose error is not within the float bar."""
        return _share_beyond(self.errors, self.float_bar)

    @property
    def beyond_allowed(self) -> float:
        if not self.integer_activations:
            return 0.0
        return min(
            TIES * _share_beyond(self.ties, self.float_bar) + 3 * sqrt(0.25 / max(len(self.errors), 1)), 1.0
        )

    @property
    def distance_bar(self) -> float | None:
        """None where single precision holds every value to the float bar."""
        if self.integer_activations:
            return min(max(TIE_BAR, TIES * max(self.tie_distances, default=0.0)), LOOSEST_BAR)
        return HALF_DISTANCE_BAR if self.float_bar == HALF_BAR else None

    @property
    def passed(self) -> bool:
        lowered = isfinite(self.worst) and self.typical <= self.bar and self.beyond <= self.beyond_allowed
        near = self.distance_bar is None or self.distance <= self.distance_bar
        bar, distance = self.quantisation_bar, self.quantisation_error
        return lowered and near and (bar is None or distance is None or distance <= bar)

    @property
    def quantisation_error(self) -> float | None:
        return float(np.median(self.quantisation)) if self.quantisation else None

    @property
    def margin(self) -> float:
        """How many times worse it could be."""
        distance = inf if self.distance_bar is None else self.distance_bar / max(self.distance, 1e-12)
        if not self.integer_activations:
            return min(self.float_bar / max(self.worst, 1e-12), distance)
        share = (
            self.beyond_allowed / max(self.beyond, 1e-3) if self.beyond_allowed < 1 else inf
        )  # all may lie beyond: says nothing
        return min(self.bar / max(self.typical, 1e-12), share, distance)

    def row(self) -> dict[str, Any]:
        """For the manifest and for `verify.json`; null where something is no number."""
        return {
            "component": self.component,
            "output": self.output,
            "check": self.check,
            "calls": len(self.errors),
            "lowering_error": _number(self.typical),
            "lowering_error_worst": _number(self.worst),
            "bar": self.bar,
            "beyond": self.beyond,
            "beyond_allowed": self.beyond_allowed,
            "distance": _number(self.distance),
            "distance_bar": self.distance_bar,
            "quantisation_error": _number(self.quantisation_error),
            "quantisation_bar": self.quantisation_bar,
            "margin": _number(self.margin),
            "passed": self.passed,
        }


@dataclass(frozen=True)
class Fact:
    """A check that is true or not, with what was seen."""

    check: str
    passed: bool
    seen: str

    def row(self) -> dict[str, Any]:
        return asdict(self)


def _share_beyond(errors: list[float], bar: float) -> float:
    return sum(not error <= bar for error in errors) / max(len(errors), 1)


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def lowering_error(found: np.ndarray, expected: np.ndarray, summary: Callable = np.max) -> float:
    """Largest (or median) difference over the reference's largest value. Infinite where shapes differ or either is not finite."""
    if not _comparable(found, expected):
        return inf
    if found.size == 0:
        return 0.0
    return float(
        summary(np.abs(found.astype(np.float64) - expected)) / max(float(np.abs(expected).max()), 1e-9)
    )


def relative_distance(found: np.ndarray, expected: np.ndarray) -> float:
    """|found - expected| / |expected| in the 2-norm. Infinite where shapes differ or either is not finite."""
    if not _comparable(found, expected):
        return inf
    return float(
        np.linalg.norm((found - expected).astype(np.float64))
        / max(float(np.linalg.norm(expected.astype(np.float64))), 1e-9)
    )


def _comparable(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.shape == expected.shape and bool(np.isfinite(found).all() and np.isfinite(expected).all())


def median_of_quarters(errors: list[float]) -> tuple[float, float]:
    """Medians of the first and the last quarter of a run."""
    quarter = max(len(errors) // 4, 1)
    return float(np.median(errors[:quarter])), float(np.median(errors[-quarter:]))
