"""Checks of codes with the same history on all sides."""

from collections.abc import Iterable
from math import sqrt

import numpy as np
import torch
from torch import nn

from voxport.export.model import Model
from voxport.export.resolve import Resolved, resolve
from voxport.export.targets.base import Target
from voxport.export.verify.comparison import (
    RARE,
    ROUNDING_FACTOR,
    Assertion,
    Measurement,
    measure,
    most_by_chance,
)
from voxport.export.verify.context import Context
from voxport.export.verify.eager import EagerEngine
from voxport.model.family import Approximation
from voxport.runtime.families import open_family
from voxport.runtime.families.workload import ForcedRun

OTHER_CODES = "other codes, teacher-forced"
# The largest of a hundred normal errors or more is about three deviations, and right artifacts keep it within
# the bar.
FLOAT_DEVIATIONS = 3
NEAREST = 16  # logits of a row; their number gives a deviation to 18 %
GROSS_FACTOR = 10  # against gross errors of a few steps; ratios up to 1.4 are measured
MOST_STEPS = 0.9  # share of the steps, so that a few steps which rounding moves far do not excuse the others


def check_codes(context: Context) -> Iterable[Assertion | Measurement]:
    """Codes with the same history on all sides.

    A code may differ only if the bars let its logit become the largest one, and in no more steps than
    chance explains. Codes without logits are compared by the values that they are rounded from. The family
    decides about choices inside graphs. The effect of quantisation is reported.
    """
    workload, constants = context.workload, context.constants
    steps, engines = context.extent.run_steps, context.engines
    reference = workload.teacher_forced_run(engines.eager.stream(), constants, steps, None)
    forced = workload.teacher_forced_run(engines.artifact.stream(), constants, steps, reference.codes)
    found = forced.codes
    unrounded = (
        workload.teacher_forced_run(engines.unrounded.stream(), constants, steps, reference.codes)
        if context.bars.integer_graphs
        else None
    )
    float_bar = context.bars.lowering
    without = unrounded.logits if unrounded else None
    yield compare_codes(reference.logits, found[:, 0] - reference.first, without, float_bar)
    if reference.other_logits.size:
        logits, codes = _rows(reference.other_logits), found[:, 1:].reshape(-1)
        without = _rows(unrounded.other_logits) if unrounded else None
        yield compare_codes(logits, codes, without, float_bar, OTHER_CODES)
    streams = engines.artifact.stream(), engines.eager.stream()
    for choice in workload.check_choices(*streams, constants, float_bar):
        yield Assertion(choice.name, choice.passed, choice.detail)
    if reference.values.size:
        yield compare_values(reference, forced, unrounded, float_bar)
    yield Measurement("codes, artifact and eager", _equal_codes(found, reference.codes))
    if engines.full:
        full = workload.teacher_forced_run(engines.full.stream(), constants, steps, reference.codes)
        distances = [measure(a, b).norm for a, b in zip(reference.hidden, full.hidden, strict=True)]
        values = _equal_codes(reference.codes, full.codes) | {"hidden_distance": float(np.median(distances))}
        yield Measurement("codes, eager and full precision", values)


def _rows(logits: np.ndarray) -> np.ndarray:
    """[n, K - 1, R] -> [n * (K - 1), R]"""
    return logits.reshape(-1, logits.shape[-1])


def compare_codes(
    reference: np.ndarray,
    found: np.ndarray,
    unrounded: np.ndarray | None,
    float_bar: float,
    name: str = "codes, teacher-forced",
) -> Assertion:
    """The indices `found` [n] point to the largest logits in `reference` [n, R], or to near ones.

    `unrounded` are the logits without the rounding of integer activations. The logit of each index is at most
    the bar of its step below the largest one, and no more indices differ than chance explains.
    """
    second, first = np.sort(reference, axis=1)[:, -2:].T
    chosen = np.take_along_axis(reference, found[:, None], axis=1)[:, 0]
    bars = _step_bars(reference, unrounded, float_bar)
    different, allowed = int((first != chosen).sum()), _most_different(reference, unrounded, float_bar)
    distances = (first - chosen) / np.maximum(bars, 1e-30)
    near = int((first - second <= bars).sum())
    detail = (
        f"{len(found) - different} of {len(found)} equal, at least {len(found) - allowed} required; the "
        f"logits of the others are up to {float((first - chosen).max()):.1e} below the largest, "
        f"{float(distances.max()):.2f} of their bars; {near} of all steps have two logits within the bar"
    )
    return Assertion(name, bool((first - chosen <= bars).all()) and different <= allowed, detail)


def _step_bars(reference: np.ndarray, unrounded: np.ndarray | None, float_bar: float) -> np.ndarray:
    """The distances [n] that the bars let the largest logit of each row of [n, R] move from another one.

    With integer activations they are `ROUNDING_FACTOR` times what their rounding moves that row, and no less
    than what it moves most rows: the artifact may meet in a row what eager meets in another one.
    """
    bars: np.ndarray = 2 * float_bar * np.abs(reference).max(axis=1)
    if unrounded is not None:
        moved = unrounded - reference
        first = reference.argmax(axis=1, keepdims=True)
        moves = np.abs(moved - np.take_along_axis(moved, first, axis=1)).max(axis=1)
        bars = bars + ROUNDING_FACTOR * np.maximum(moves, np.quantile(moves, MOST_STEPS))
    return bars


def _most_different(reference: np.ndarray, unrounded: np.ndarray | None, float_bar: float) -> int:
    """How many rows may have another largest logit than `reference`: as many as chance explains.

    Each logit is the one without rounding plus a sum of many roundings, which is close to normal. Its
    deviation is taken from all logits of the row in eager, or its largest ones: in trained models, rounding
    moves these further. That of float sums is a part of their bar. A row differs if rounding changes the
    index in eager or in the artifact.
    """
    origin = reference if unrounded is None else unrounded
    deviation = float_bar / FLOAT_DEVIATIONS * np.abs(reference).max(axis=1)
    if unrounded is not None:
        moved = unrounded - reference
        nearest = np.argsort(origin, axis=1)[:, -NEAREST:]
        all_or_nearest = (moved, np.take_along_axis(moved, nearest, axis=1))
        deviation = np.hypot(deviation, np.max([part.std(axis=1) for part in all_or_nearest], axis=0))
    first = origin.argmax(axis=1, keepdims=True)
    below = origin - np.take_along_axis(origin, first, axis=1)  # [n, R], at most 0
    scaled = below / np.maximum(sqrt(2) * deviation[:, None], 1e-30)  # two logits move
    larger = torch.special.ndtr(torch.from_numpy(scaled.astype(np.float64))).numpy()
    np.put_along_axis(larger, first, 0.0, axis=1)
    changed_in_eager = int((first[:, 0] != reference.argmax(axis=1)).sum())
    return min(changed_in_eager + most_by_chance(np.minimum(larger.sum(axis=1), 1)), len(reference))


def compare_values(
    reference: ForcedRun, found: ForcedRun, unrounded: ForcedRun | None, float_bar: float
) -> Assertion:
    """The values that codes are rounded from.

    Without integer activations, the largest difference and the root mean square have a bar. Each call of a
    graph behind a value may add an error of `float_bar`. The largest ones add up; in the root mean square,
    they add as independent errors do. Where rounding moves the values, `_compare_rounded` compares them.
    """
    difference, calls = found.values - reference.values, reference.value_calls
    bars = np.array([calls, calls**0.5]) * float_bar * _sizes(reference.values)
    rounding = (unrounded or reference).values - reference.values
    if rounding.any():
        passed, detail = _compare_rounded(difference, rounding, *bars)
    else:
        differences = _sizes(difference)
        passed = bool((differences <= bars).all())
        detail = (
            f"values differ by up to {differences[0]:.1e}, bar {bars[0]:.1e}, root mean square "
            f"{differences[1]:.1e}, bar {bars[1]:.1e}"
        )
    equal = (found.codes[:, 1:] == reference.codes[:, 1:]).mean()
    return Assertion(OTHER_CODES, passed, f"{equal:.2%} equal; {detail}")


def _compare_rounded(
    difference: np.ndarray, rounding: np.ndarray, largest_bar: float, mean_bar: float
) -> tuple[bool, str]:
    """Whether rounding of activations explains the differences [n, K - 1] from eager, and what was counted.

    `rounding` is eager's. The artifact's has the same distribution, so it is the larger one with
    a probability of at most one half in each step. In no other step can they differ by more than
    `ROUNDING_FACTOR` times eager's. This holds for the norm of a step and for each code book. The
    counts cannot find an error in a few steps. `GROSS_FACTOR` limits the root mean square for that.
    """
    steps, books = difference.shape
    of_steps = [np.linalg.norm(values, axis=1) for values in (difference, rounding)]
    beyond_steps = ~(of_steps[0] <= ROUNDING_FACTOR * of_steps[1] + books**0.5 * largest_bar)
    beyond = ~(np.abs(difference) <= ROUNDING_FACTOR * np.abs(rounding) + largest_bar)
    counts = int(beyond_steps.sum()), int(beyond.sum(axis=0).max())
    half = [0.5] * steps
    allowed = most_by_chance(half), most_by_chance(half, RARE / books)
    mean, bar = _sizes(difference)[1], GROSS_FACTOR * _sizes(rounding)[1] + mean_bar
    is_finite = bool(np.isfinite(difference).all() and np.isfinite(rounding).all())
    detail = (
        f"{counts[0]} of {steps} steps differ by more than {ROUNDING_FACTOR:.0f} times their rounding, "
        f"{allowed[0]} allowed; {counts[1]} in the code book with the most of them, {allowed[1]} allowed; "
        f"root mean square {mean:.1e}, bar {bar:.1e}"
    )
    return is_finite and counts[0] <= allowed[0] and counts[1] <= allowed[1] and bool(mean <= bar), detail


def _sizes(difference: np.ndarray) -> np.ndarray:
    return np.array([np.abs(difference).max(), np.sqrt(np.square(difference).mean())])


def _equal_codes(found: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """Shares of equal codes: of the first column, which has logits, and of the others."""
    equal = found == expected
    shares = {"codes_equal": float(equal[:, 0].mean())}
    return shares | ({"other_codes_equal": float(equal[:, 1:].mean())} if equal.shape[1] > 1 else {})


def compare_with_default(
    approximation: Approximation, resolved: Resolved, target: Target, model: Model, steps: int
) -> Iterable[Measurement]:
    """How far the codes of a faster option are from the codes of its default: a teacher-forced run of `steps`
    steps, in eager with float activations. Nothing if the option has its default.
    """
    option, request = approximation.option, resolved.request
    others = {name: value for name, value in request.options.items() if name != option}
    default = resolve(resolved.source, request.model_copy(update={"options": others}))
    value, usual = (getattr(each.options, option) for each in (resolved, default))
    if value == usual:
        return
    run = open_family(resolved.source.family.name).verification.teacher_forced_run
    stream = EagerEngine(model.components, model.module, target.layout).stream()
    found = run(stream, resolved.constants, steps, None)
    model.release(approximation.graph)  # memory holds one of the two
    changed = Model(default, target.layout, target.compute_precision)

    def module(component: str) -> nn.Module:
        owner = changed if resolved.graph_of[component] == approximation.graph else model
        return owner.module(component)

    stream = EagerEngine(model.components, module, target.layout).stream()
    expected = run(stream, default.constants, steps, found.codes)
    equal = found.codes[:, 1:] == expected.codes[:, 1:]
    values = {
        "distance": measure(found.values, expected.values).norm,
        "other_codes_equal": float(equal.mean()),
    }
    yield Measurement(f"codes, {option} {value} and {usual}", values)
