"""Whole runs: teacher-forced code agreement, and what two models make of the same input when each runs free."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from export.verify.comparison import TIE_BAR, TIES, Fact, relative_distance
from export.verify.context import Context
from runtime.families.base import RuntimeFamily

Reports = dict[str, dict[str, float]]


def agreement(
    context: Context, family: RuntimeFamily[Any], constants: Any, reports: Reports
) -> Iterable[Fact]:
    """Lowering: the code of largest logit is equal wherever its margin exceeds what the bars let two logits move; codes that are
    rounded within one level. What quantisation does goes into `reports`.

    With integer activations a tie may move all logits of a step, and then each by the bar of a worst call of their root mean
    square, or by `TIES` times what another order of sums moves them. One such order alone may happen upon no tie.
    """
    steps = context.extent.spoken
    reference = family.verification.teacher_forced_run(context.eager(), constants, steps)
    found = family.verification.teacher_forced_run(
        context.artifact(), constants, steps, reference.codes
    ).codes
    error = context.float_bar * float(np.abs(reference.logits).max())
    if context.is_integer("decode_step"):
        moved = family.verification.teacher_forced_run(context.reordered(), constants, steps, reference.codes)
        error = max(error, TIES * float(np.abs(moved.logits - reference.logits).max()))
        error = max(error, TIE_BAR * float(np.sqrt(np.square(reference.logits).mean(axis=1)).max()))
    second, first = np.sort(reference.logits, axis=1)[:, -2:].T
    near = first - second <= 2 * error
    different = found[:, 0] != reference.codes[:, 0]
    excused = int((different & near).sum())
    yield Fact(
        "codes, teacher-forced",
        int(different.sum()) == excused,
        f"{steps - int(different.sum())} of {steps} equal, {excused} of the others nearer to a tie than {2 * error:.1e}, as {int(near.sum())} of all are",
    )
    near_codes = family.verification.codes_are_near(found, reference.codes)
    if near_codes:
        yield Fact("rounded codes, teacher-forced", near_codes.passed, near_codes.detail)
    reports["codes, artifact and eager"] = _equal(found, reference.codes)
    if context.full:
        full = family.verification.teacher_forced_run(context.full(), constants, steps, reference.codes)
        distances = [
            relative_distance(own, other) for own, other in zip(reference.hidden, full.hidden, strict=True)
        ]
        reports["codes, eager and full precision"] = _equal(reference.codes, full.codes) | {
            "hidden_distance": float(np.median(distances))
        }


def end_to_end(
    context: Context, family: RuntimeFamily[Any], constants: Any, reports: Reports, full_in_turns: bool
) -> Iterable[Fact]:
    """Free runs: the artifact's beside eager's, and eager's beside full precision's.

    The latter where full precision can be called in turns, graph by graph: see `OneGraph`. It goes into `reports`, fails nothing.
    """
    steps = context.extent.spoken
    eager = family.verification.free_run(context.eager(), constants, steps)
    artifact = family.verification.free_run(context.artifact(), constants, steps)
    finite = bool(np.isfinite(artifact).all()) and bool(len(artifact)) >= bool(len(eager))
    yield Fact("free run", finite, "finite" if finite else "nothing came, or what is no number")
    if finite:
        reports["free run, artifact and eager"] = family.verification.compare(artifact, eager, constants)
    if context.full and full_in_turns:
        reports["free run, eager and full precision"] = family.verification.compare(
            eager, family.verification.free_run(context.full(), constants, steps), constants
        )


def _equal(found: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    same = found == expected
    return {"codes_equal": float(same[:, 0].mean())} | (
        {"rounded_equal": float(same[:, 1:].mean())} if same.shape[1] > 1 else {}
    )
