"""How far two results lie apart, and how far they may.

Two distances are never mixed: the *lowering error* of an artifact against eager with the same integers, scales and
activation arithmetic; and the *quantisation error* of that eager against full precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import sqrt
from typing import Any

import numpy as np

FLOAT_BAR = 1e-4  # of the reference's largest value, as design.md sets it for float32


def distance_at(correlation: float) -> float:
    """|a - b| / |b| of two signals of equal size with that correlation."""
    return sqrt(2 * (1 - correlation))


# Integer activations: two float orders differ by 1 ulp before rounding, so now and then a value lands on the other side of
# a tie and moves a whole step, and what depends on it moves too, the more so the deeper the model. So eager is compared with
# itself as well, under another order of sums: an artifact may lie `TIES` times as far off as that. Where that is nothing, as in
# most calls of a shallow model, the median keeps the float bar, and the worst a correlation of 0.999 with the reference.
TIES = 3.0
FLIP_BAR = distance_at(0.999)
LOOSEST_BAR = distance_at(0.99)  # whatever eager makes of itself


@dataclass
class Comparison:
    """Errors of one output of one component over many calls: the largest and the median one of each call."""

    component: str
    output: str
    check: str
    integer_activations: bool
    errors: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    ties: list[float] = field(default_factory=list)
    tie_medians: list[float] = field(default_factory=list)
    quantisation: list[float] = field(default_factory=list)
    quantisation_bar: float | None = None

    def add(self, found: np.ndarray, expected: np.ndarray, reordered: np.ndarray | None = None) -> None:
        """`reordered` is what eager makes of the same call under another order of float sums."""
        self.errors.append(lowering_error(found, expected))
        self.medians.append(lowering_error(found, expected, np.median))
        if reordered is not None:
            self.ties.append(lowering_error(reordered, expected))
            self.tie_medians.append(lowering_error(reordered, expected, np.median))

    @property
    def typical(self) -> float:
        """Median over calls: of the largest difference, or of the median one where ties may flip."""
        return float(np.median(self.medians if self.integer_activations else self.errors))

    @property
    def worst(self) -> float:
        return float(np.max(self.errors))

    @property
    def bars(self) -> tuple[float, float]:
        """For the typical and the worst call."""
        if not self.integer_activations:
            return FLOAT_BAR, FLOAT_BAR
        typical, worst = (float(np.median(self.tie_medians)), max(self.ties)) if self.ties else (0.0, 0.0)
        return min(max(FLOAT_BAR, TIES * typical), LOOSEST_BAR), min(max(FLIP_BAR, TIES * worst), LOOSEST_BAR)

    @property
    def passed(self) -> bool:
        typical_bar, worst_bar = self.bars
        lowered = bool(self.errors) and self.typical <= typical_bar and self.worst <= worst_bar  # a NaN fails
        bar, distance = self.quantisation_bar, self.quantisation_error
        return lowered and (bar is None or distance is None or distance <= bar)

    @property
    def quantisation_error(self) -> float | None:
        return float(np.median(self.quantisation)) if self.quantisation else None

    def row(self) -> dict[str, Any]:
        """For the manifest and for `verify.json`."""
        typical_bar, worst_bar = self.bars
        return {
            "component": self.component,
            "output": self.output,
            "check": self.check,
            "calls": len(self.errors),
            "lowering_error": self.typical,
            "lowering_error_worst": self.worst,
            "bar": typical_bar,
            "bar_worst": worst_bar,
            "quantisation_error": self.quantisation_error,
            "quantisation_bar": self.quantisation_bar,
            "margin": min(typical_bar / max(self.typical, 1e-12), worst_bar / max(self.worst, 1e-12)),
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


def lowering_error(found: np.ndarray, expected: np.ndarray, summary: Callable = np.max) -> float:
    """Largest (or median) difference over the reference's largest value. Infinite where shapes differ or either is not finite."""
    if found.shape != expected.shape or not (np.isfinite(found).all() and np.isfinite(expected).all()):
        return float("inf")
    if found.size == 0:
        return 0.0
    return float(summary(np.abs(found.astype(np.float64) - expected)) / max(float(np.abs(expected).max()), 1e-9))


def median_of_quarters(errors: list[float]) -> tuple[float, float]:
    """Medians of the first and the last quarter of a run."""
    quarter = max(len(errors) // 4, 1)
    return float(np.median(errors[:quarter])), float(np.median(errors[-quarter:]))


def relative_distance(found: np.ndarray, expected: np.ndarray) -> float:
    """|found - expected| / |expected| in the 2-norm: what quantisation does to an output as a whole."""
    return float(np.linalg.norm((found - expected).astype(np.float64)) / max(float(np.linalg.norm(expected.astype(np.float64))), 1e-9))
