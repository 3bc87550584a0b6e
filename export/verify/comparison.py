"""How far two results differ, and how far they may.

Two distances are kept apart. The *lowering error* is the distance of an artifact from eager with
the same integers, scales and activation arithmetic. The *quantisation error* is the distance of this eager
model from full precision.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np

Row = dict[str, Any]  # Any: a JSON object with text, numbers, booleans and null


def distance_at(correlation: float) -> float:
    """|a - b| / |b| in the 2-norm, of two signals of equal size with that correlation."""
    return sqrt(2 * (1 - correlation))


FLOAT_BAR = 1e-4  # relative to the reference's largest value, as the design sets it for float32
# Half precision rounds every value by up to 2^-12 of itself. About 20 independent roundings per layer add up
# to sqrt(40) · 2^-12 = 1.5e-3 after 2 layers, and the worst output has twice as much (3e-3), and to sqrt(520)
# · 2^-12 = 5.6e-3 after 26. The bar allows the same factor there, and as much again. No call may be below the
# design's correlation.
FLOAT16_BAR, FLOAT16_DISTANCE_BAR = 2e-2, distance_at(0.999)

# Integer activations: eager and the artifact round the same activations, but their float sums have another
# order. A value near a tie then rounds to the other side, and every value that depends on it moves. At worst
# the two sides round independently of each other. Each side is as far from the result without rounding as
# rounding itself moves it, so by the triangle inequality they are at most twice that far apart.
ROUNDING_FACTOR = 2.0
RARE = 1e-3  # probability with which a share of calls may be beyond by chance alone
FEW_TIES = 0.25  # share of calls with ties; a median over a hundred calls then meets none

# A gain of half of the channels is lost in a distance if rounding moves every channel by more. If the errors
# of channels have random signs, a sum of them exceeds so many of its standard deviations with a probability
# of at most 2 exp(-6^2 / 2) = 3e-8 (Hoeffding, for any sizes of the errors).
DEVIATIONS = 6.0
SHARE = "share of calls beyond the float bar"  # name of a criterion


class Distance(NamedTuple):
    """The largest difference over the largest expected value, and the distance in the 2-norm over the norm of
    the expected values.
    """

    largest: float
    norm: float


def measure(found: np.ndarray, expected: np.ndarray) -> Distance:
    """Infinite if shapes differ or a value is not finite."""
    if found.shape != expected.shape or not (np.isfinite(found).all() and np.isfinite(expected).all()):
        return Distance(inf, inf)
    if found.size == 0:
        return Distance(0.0, 0.0)
    errors, exact = found.astype(np.float64) - expected, expected.astype(np.float64)
    largest = float(np.abs(errors).max()) / max(float(np.abs(exact).max()), 1e-9)
    return Distance(largest, float(np.linalg.norm(errors)) / max(float(np.linalg.norm(exact)), 1e-9))


class Gain(NamedTuple):
    """By how much the channels of one half are larger, relative. `deviation` is its standard deviation if
    independent errors have random signs.
    """

    value: float
    deviation: float


def gains(
    found: np.ndarray, expected: np.ndarray, reference: np.ndarray, inputs: int | None = None
) -> list[Gain]:
    """One for each half of the last axis: the factor between found - expected and a reference, by least
    squares. The reference has no rounding error that `expected` has too, which would look like a loss.
    `inputs`: channels are sums of so many values, and no more of their errors are independent.

    Empty if shapes differ, a value is not finite, or there is only one channel.
    """
    if not found.shape == expected.shape == reference.shape or not np.ndim(found) or found.shape[-1] < 2:
        return []
    errors, exact = found.astype(np.float64) - expected, reference.astype(np.float64)
    if not (np.isfinite(errors).all() and np.isfinite(exact).all()):
        return []
    middle = exact.shape[-1] // 2
    dependent = max(1.0, middle / (inputs or middle))  # channels for each independent error
    return [
        _gain(errors[..., half], exact[..., half], dependent) for half in (slice(middle), slice(middle, None))
    ]


def _gain(errors: np.ndarray, reference: np.ndarray, dependent: float) -> Gain:
    power, products = float((reference**2).sum()), errors * reference
    if not power:
        return Gain(0.0, 0.0)
    return Gain(float(products.sum()) / power, sqrt(dependent * float((products**2).sum())) / power)


class Criterion(NamedTuple):
    """A value that may be at most its bar."""

    name: str
    value: float
    bar: float

    @property
    def passed(self) -> bool:
        return self.value <= self.bar

    @property
    def margin(self) -> float:
        """The factor by which the value could be larger and still pass."""
        return self.bar / max(self.value, 1e-12)


@dataclass
class Comparison:
    """One output of one component over many calls of the check `name`.

    `calls` are the distances of the artifact from eager, `quantisation` the distances of eager from full
    precision. With integer activations, `rounding` are the distances from eager of eager without that
    rounding, and `perturbed` the distances of eager under another order of float sums, if it ran. `gains`
    belong to the artifact, and `rounding_gain` is the largest one of rounding, of either sign. `inputs` are
    the values that logits are sums of.
    """

    component: str
    output: str
    name: str
    integer_activations: bool
    float_bar: float = FLOAT_BAR
    calls: list[Distance] = field(default_factory=list)
    rounding: list[Distance] = field(default_factory=list)
    perturbed: list[Distance] = field(default_factory=list)
    gains: list[Gain] = field(default_factory=list)
    rounding_gain: float = 0.0
    quantisation: list[Distance] = field(default_factory=list)
    quantisation_bar: float | None = None
    inputs: int | None = None

    def add(
        self,
        found: np.ndarray,
        expected: np.ndarray,
        unrounded: np.ndarray | None = None,
        perturbed: np.ndarray | None = None,
        *,
        full: np.ndarray | None = None,
    ) -> None:
        """Adds one call: of the artifact, of eager, and of the other engines of `ComparedEngines`."""
        self.calls.append(measure(found, expected))
        if unrounded is not None:
            self.rounding.append(measure(unrounded, expected))
            self.gains += gains(found, expected, unrounded, self.inputs)
            of_rounding = [abs(gain.value) for gain in gains(expected, unrounded, unrounded)]
            self.rounding_gain = max([self.rounding_gain, *of_rounding])
        if perturbed is not None:
            self.perturbed.append(measure(perturbed, expected))
        if full is not None:
            self.quantisation.append(measure(expected, full))

    @property
    def typical(self) -> float:
        """Median over calls of the largest error."""
        return float(np.median([call.largest for call in self.calls])) if self.calls else inf

    @property
    def worst(self) -> float:
        return max((call.largest for call in self.calls), default=inf)

    @property
    def beyond(self) -> float:
        """Share of the calls with an error beyond the float bar."""
        return _share_beyond(self.calls, self.float_bar)

    @property
    def beyond_allowed(self) -> float:
        """With integer activations, calls that meet no tie stay within the float bar.

        Perturbed eager measures how many those are. The artifact may have half of them, less what chance
        explains over so few calls.
        """
        if not self.integer_activations:
            return 0.0
        if not self.perturbed:
            return 1.0
        free_of_ties = 1 - _share_beyond(self.perturbed, self.float_bar)
        return most_by_chance([1 - free_of_ties / 2] * len(self.calls)) / max(len(self.calls), 1)

    @property
    def has_typical_error(self) -> bool:
        """Whether ties affect no median over calls: with integer activations, if eager meets few."""
        few = bool(self.perturbed) and _share_beyond(self.perturbed, self.float_bar) <= FEW_TIES
        return few or not self.integer_activations

    @property
    def distance(self) -> float:
        """The distance of the worst call. With integer activations, of the calls beyond the float bar."""
        counted = [
            call.norm
            for call in self.calls
            if not self.integer_activations or not call.largest <= self.float_bar
        ]
        return max(counted, default=0.0 if self.calls else inf)

    @property
    def distance_bar(self) -> float | None:
        """None if single precision keeps every value within the float bar."""
        distance = max(FLOAT16_DISTANCE_BAR, self.float_bar) if self.float_bar >= FLOAT16_BAR else 0.0
        if self.integer_activations:
            return distance + ROUNDING_FACTOR * max((call.norm for call in self.rounding), default=0.0)
        return distance or None

    @property
    def gain(self) -> Criterion | None:
        """The gain of half of the channels that is nearest to its bar. None without integer activations."""
        allowed = self.float_bar + ROUNDING_FACTOR * self.rounding_gain
        found = [
            Criterion("gain of half of the channels", abs(gain.value), allowed + DEVIATIONS * gain.deviation)
            for gain in self.gains
        ]
        return min(found, key=lambda criterion: criterion.margin, default=None)

    @property
    def criteria(self) -> list[Criterion]:
        """What decides. With integer activations a tie may move a call beyond the float bar: if one is, the
        number of such calls and their distance decide.
        """
        found = [Criterion("error", self.worst, self.float_bar)]
        if self.integer_activations and self.calls and not found[0].passed:
            found = [Criterion(SHARE, self.beyond, self.beyond_allowed)]
        if self.distance_bar is not None and (self.beyond or not self.integer_activations):
            found.append(Criterion("distance", self.distance, self.distance_bar))
        return [*found, *([self.gain] if self.gain else [])]

    @property
    def nearest(self) -> Criterion:
        """The criterion that fails, or that is nearest to its bar. A share of 1 limits nothing."""
        limits = [each for each in self.criteria if (each.name, each.bar) != (SHARE, 1)]
        return min(limits, key=lambda criterion: criterion.margin)

    @property
    def quantisation_error(self) -> float | None:
        return float(np.median([call.norm for call in self.quantisation])) if self.quantisation else None

    @property
    def quantisation_passed(self) -> bool:
        bar, distance = self.quantisation_bar, self.quantisation_error
        return bar is None or distance is None or distance <= bar

    @property
    def passed(self) -> bool:
        lowered = isfinite(self.worst) and all(criterion.passed for criterion in self.criteria)
        return lowered and self.quantisation_passed

    @property
    def margin(self) -> float:
        """The factor by which the artifact could be worse and still pass."""
        return self.nearest.margin

    def row(self) -> Row:
        """For the manifest and for `verify.json`; null if a value is not finite."""
        return {
            "component": self.component,
            "output": self.output,
            "check": self.name,
            "calls": len(self.calls),
            "lowering_error": finite(self.typical),
            "lowering_error_worst": finite(self.worst),
            "bar": self.float_bar,
            "beyond": self.beyond,
            "beyond_allowed": self.beyond_allowed,
            "distance": finite(self.distance),
            "distance_bar": self.distance_bar,
            "gain": self.gain and self.gain.value,
            "gain_bar": self.gain and self.gain.bar,
            "quantisation_error": finite(self.quantisation_error),
            "quantisation_bar": self.quantisation_bar,
            "margin": finite(self.margin),
            "passed": self.passed,
        }


@dataclass(frozen=True)
class Assertion:
    """A statement that holds or not; `detail` is what was measured.

    With `left_out` it was not checked, because the family has nothing to check; `detail` is the reason.
    """

    name: str
    passed: bool
    detail: str
    left_out: bool = False

    def row(self) -> Row:
        """For the manifest and for `verify.json`."""
        row = {"check": self.name, "passed": self.passed, "detail": self.detail}
        return row | {"left_out": True} if self.left_out else row


@dataclass(frozen=True)
class Measurement:
    """Measured values without a bar."""

    name: str
    values: dict[str, float]


@dataclass(frozen=True)
class FreeRun:
    """What a free run of one engine gave: float32 samples or int64 tokens [n]. For the page of charts."""

    name: str
    engine: str
    values: np.ndarray


Result = Comparison | Assertion | Measurement | FreeRun


def most_by_chance(probabilities: Sequence[float] | np.ndarray, rare: float = RARE) -> int:
    """The least count that independent events of these probabilities exceed with a probability of at most
    `rare`.
    """
    counts = np.ones(1)  # probability of each count
    for probability in probabilities:
        counts = np.convolve(counts, (1 - probability, probability))
    beyond = np.append(counts[::-1].cumsum()[::-1][1:], 0)  # probability of more than each count
    return int(np.argmax(beyond <= rare))


def least_margin(compared: Iterable[Comparison]) -> Comparison:
    """The comparison that fails, or that is nearest to it."""
    return min(compared, key=lambda comparison: (comparison.passed, comparison.margin))


def _share_beyond(calls: list[Distance], bar: float) -> float:
    return sum(not call.largest <= bar for call in calls) / max(len(calls), 1)


def finite(value: float | None) -> float | None:
    """The value, or None if it is not a finite number."""
    return value if value is not None and isfinite(value) else None
