"""Checks over hundreds of frames, for families whose frames feed many codes back.

A recipe may pass every short check and still end in noise or silence after a minute of speech.
"""

from collections.abc import Callable, Iterable

import numpy as np

from voxport.export.verify.comparison import Assertion, Measurement, measure
from voxport.export.verify.context import Context
from voxport.export.verify.modes import MAX_ROWS
from voxport.export.verify.run_checks import check_drift
from voxport.runtime.batching import Status
from voxport.runtime.engines.base import Engine
from voxport.runtime.families.workload import ForcedRun, Rollout
from voxport.runtime.utterance import RunawayGuard


def check_long_codes(context: Context) -> Iterable[Assertion | Measurement]:
    """Frames with the history of full precision, and as many that continue from their own codes.

    The cache holds a prompt of `MAX_ROWS` rows and them. Drift from eager with the same integers is left out
    if a large model is sampled: its eager steps take seconds.
    """
    workload, constants, engines = context.workload, context.constants, context.engines
    if workload.rollout is None:
        return
    frames = min(context.extent.frames, context.cache_length - MAX_ROWS)
    full = engines.full or engines.eager
    reference = workload.teacher_forced_run(full.stream(), constants, frames, None)
    forced: Callable[[Engine], ForcedRun] = lambda engine: workload.teacher_forced_run(
        engine.stream(), constants, frames, reference.codes
    )
    found = forced(engines.artifact)
    if not context.extent.is_sample:
        eager, rounding = forced(engines.eager), list[float]()
        if context.bars.integer_graphs:
            rounding = _errors(forced(engines.unrounded), eager)
        errors = _errors(found, eager)
        yield check_drift(f"no drift over {frames} frames", errors, context.bars.lowering, rounding)
    equal = (found.codes == reference.codes).mean(axis=0)
    by_book = {f"code_{book}": float(share) for book, share in enumerate(equal)}
    yield Measurement(f"codes over {frames} frames, artifact and full precision", by_book)
    spoken = [workload.rollout(engine.stream(), constants, frames) for engine in (engines.artifact, full)]
    yield _check_end(*spoken)
    yield Measurement(f"free runs of {frames} frames", {"equal_frames": equal_frames(*spoken)})


def _errors(found: ForcedRun, expected: ForcedRun) -> list[float]:
    """The largest error of the hidden values of each frame."""
    return [measure(*rows).largest for rows in zip(found.hidden, expected.hidden, strict=True)]


def equal_frames(first: Rollout, second: Rollout) -> int:
    """Frames with equal codes, up to the first one that differs. Both have the same noise."""
    differ = np.flatnonzero((first.codes != second.codes).any(axis=1))
    return int(differ[0]) if len(differ) else len(first.codes)


def _check_end(artifact: Rollout, full: Rollout) -> Assertion:
    """The artifact repeats itself or falls silent only if full precision does."""
    found, expected = (_runaway(run) for run in (artifact, full))
    passed = found is None or expected is not None
    texts = ["neither" if end is None else f"{end[0]} after {end[1]} frames" for end in (found, expected)]
    return Assertion(
        f"repetition or silence within {len(artifact.codes)} frames",
        passed,
        f"artifact: {texts[0]}; full precision: {texts[1]}",
    )


def _runaway(run: Rollout) -> tuple[str, int] | None:
    """The reason for which the runtime would stop the speech, and the number of frames before that."""
    guard, samples = RunawayGuard(), run.samples.reshape(len(run.codes), -1)
    for index, codes in enumerate(run.codes):
        reason = guard.add_codes(codes)
        if guard.add_samples(samples[index], 1):
            reason = Status.SILENCE
        if reason:
            return str(reason), index + 1
    return None
