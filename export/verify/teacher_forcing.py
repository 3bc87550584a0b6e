"""Checks of whole runs: codes under teacher forcing, and the output of free runs."""

from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from export.verify.comparison import TIE_BAR, TIE_FACTOR, Check, Report, relative_distance
from export.verify.context import Context
from runtime.families.base import ForcedRun, VerificationWorkload

Constants = TypeVar("Constants")


def check_codes(
    context: Context, workload: VerificationWorkload[Constants], constants: Constants
) -> Iterable[Check | Report]:
    """Codes with the same history on all sides.

    The code with the largest logit is equal wherever its margin exceeds what the bars let two logits move.
    The family decides about codes that have no logits. The effect of quantisation is reported.
    """
    steps, engines = context.extent.run_steps, context.engines
    reference = workload.teacher_forced_run(engines.eager.stream(), constants, steps, None)
    found = workload.teacher_forced_run(engines.artifact.stream(), constants, steps, reference.codes).codes
    perturbed = None
    if any(context.is_integer(decoder.step) for decoder in context.plan.decoders):
        stream = engines.perturbed.stream()
        perturbed = workload.teacher_forced_run(stream, constants, steps, reference.codes)
    yield _check_logits(reference, found, _logit_error(reference, perturbed, context.bars.lowering))
    if near := workload.codes_are_near(found, reference.codes):
        yield Check("other codes, teacher-forced", near.passed, near.detail)
    yield Report("codes, artifact and eager", _equal_codes(found, reference.codes))
    if engines.full:
        full = workload.teacher_forced_run(engines.full.stream(), constants, steps, reference.codes)
        distances = [relative_distance(a, b) for a, b in zip(reference.hidden, full.hidden, strict=True)]
        values = _equal_codes(reference.codes, full.codes) | {"hidden_distance": float(np.median(distances))}
        yield Report("codes, eager and full precision", values)


def _logit_error(reference: ForcedRun, perturbed: ForcedRun | None, float_bar: float) -> float:
    """The distance that the bars let a logit move.

    With integer activations (`perturbed`) a tie may move all logits of a step. Each may then move by the bar
    of a worst call of their root mean square, or by `TIE_FACTOR` times what another order of sums moves them.
    That order may meet no tie.
    """
    error = float_bar * float(np.abs(reference.logits).max())
    if perturbed is not None:
        error = max(error, TIE_FACTOR * float(np.abs(perturbed.logits - reference.logits).max()))
        error = max(error, TIE_BAR * float(np.sqrt(np.square(reference.logits).mean(axis=1)).max()))
    return error


def _check_logits(reference: ForcedRun, found: np.ndarray, error: float) -> Check:
    second, first = np.sort(reference.logits, axis=1)[:, -2:].T
    near = first - second <= 2 * error
    different = found[:, 0] != reference.codes[:, 0]
    excused = int((different & near).sum())
    detail = (
        f"{int((~different).sum())} of {len(found)} equal, {excused} of the others have a margin below "
        f"{2 * error:.1e}, as {int(near.sum())} of all steps"
    )
    return Check("codes, teacher-forced", int(different.sum()) == excused, detail)


def check_free_run(
    context: Context, workload: VerificationWorkload[Constants], constants: Constants
) -> Iterable[Check | Report]:
    """A run of the artifact that continues from its own codes is finite, and not empty unless eager's is.

    Its distance from eager, and that of eager from full precision, are reported.
    """
    steps, engines = context.extent.run_steps, context.engines
    eager = workload.free_run(engines.eager.stream(), constants, steps)
    artifact = workload.free_run(engines.artifact.stream(), constants, steps)
    passed = bool(np.isfinite(artifact).all()) and bool(len(artifact)) >= bool(len(eager))
    yield Check("free run", passed, "finite" if passed else "empty, or with values that are not finite")
    if passed:
        yield Report("free run, artifact and eager", workload.compare(artifact, eager, constants))
    if engines.full:
        full = workload.free_run(engines.full.stream(), constants, steps)
        yield Report("free run, eager and full precision", workload.compare(eager, full, constants))


def _equal_codes(found: np.ndarray, expected: np.ndarray) -> dict[str, float]:
    """Shares of equal codes: of the first column, which has logits, and of the others."""
    equal = found == expected
    shares = {"codes_equal": float(equal[:, 0].mean())}
    return shares | ({"other_codes_equal": float(equal[:, 1:].mean())} if equal.shape[1] > 1 else {})
