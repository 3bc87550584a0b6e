"""Checks of many calls in sequence: long runs, replay, free runs, and codes over many frames."""

import logging
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from voxport.export.verify.comparison import (
    ROUNDING_FACTOR,
    Assertion,
    Comparison,
    FreeRun,
    Measurement,
    Result,
    least_margin,
    measure,
)
from voxport.export.verify.context import (
    Context,
    add_outputs,
    add_states,
    at_position,
    equal_rows,
    full_states,
    has_window,
    largest_example,
)
from voxport.export.verify.modes import MAX_ROWS
from voxport.model.family import Decoder
from voxport.model.graph import Component
from voxport.runtime.batching import Status
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families.workload import ForcedRun, Rollout
from voxport.runtime.utterance import RunawayGuard

log = logging.getLogger(__name__)
LOG_INTERVAL = 200  # steps of a long run between two lines of progress; a multiple of `STRETCH`
STRETCH = 25  # steps of a long run; if ties may differ, both sides then continue from the same states
ALL_ENGINES_EVERY = 4  # stretches; the others run the artifact and eager only
GROWTH = 7  # the error grows at most linearly with the rows, from the first quarter to the last
Call = tuple[str, Arrays]  # a component and its inputs


def check_long_runs(context: Context) -> Iterable[Comparison | Assertion]:
    """Many decode steps of every decoder after a prefill, with the same inputs for all sides."""
    steps = context.extent.steps
    if not context.plan.decoders:
        yield Assertion("long run", True, "the family has no decoder", left_out=True)
    for decoder in context.plan.decoders:
        step = context.components[decoder.step]
        count = steps if has_window(step) else min(steps, (step.signature.capacity or 0) - MAX_ROWS)
        if count:
            yield from _check_long_run(context, decoder, count)


def _check_long_run(context: Context, decoder: Decoder, steps: int) -> Iterable[Comparison | Assertion]:
    """One long run.

    With float activations each side keeps its own states throughout. With integer activations a tie that
    rounds differently stays in the cache and affects later ones. All sides then continue from eager's states
    every `STRETCH` steps, after these were compared. In both cases a row never changes after it was
    written, to the bit.
    """
    step, streams = context.components[decoder.step], context.streams(decoder.step)
    outputs = context.comparison(step.name, decoder.output, f"{steps} steps")
    caches = context.state_comparisons(step.name, f"{steps} steps")
    start = at_position(largest_example(context.components[decoder.prefill], 7), 0)
    for stream in streams:
        stream.run(decoder.prefill, start)
    before, unchanged = streams[0].save(step.name, MAX_ROWS), True
    for first in range(0, steps, STRETCH):
        if first and first % LOG_INTERVAL == 0:
            log.info("    %d of %d steps", first, steps)
        active = streams if first // STRETCH % ALL_ENGINES_EVERY == 0 else streams[:2]
        if context.is_integer(step.name):
            states = streams[1].save()
            for stream in active:
                stream.load(states)
            # the artifact may round them to half precision
            before = streams[0].save(step.name, MAX_ROWS + first)
        indices = range(first, min(first + STRETCH, steps))
        for index in indices:
            inputs = at_position(step.example(index), MAX_ROWS + index)
            add_outputs([outputs], [stream.run(step.name, inputs) for stream in active])
        found = [stream.save(step.name, MAX_ROWS + indices.stop) for stream in active]
        add_states(caches, found)
        old_rows = slice(0 if has_window(step) else MAX_ROWS + first)
        unchanged &= equal_rows(before, found[0], step.signature.states, old_rows)
        before = found[0]
    yield from (outputs, least_margin(caches.values()))
    suffix = f": {step.name}" if len(context.plan.decoders) > 1 else ""
    if not has_window(step):
        detail = f"{'unchanged' if unchanged else 'changed'} over {steps} steps, to the bit"
        yield Assertion(f"written rows{suffix}", unchanged, detail)
    if outputs.has_typical_error:
        errors = [call.largest for call in outputs.calls]
        yield check_drift(f"no drift{suffix}", errors, outputs.float_bar)


def check_drift(name: str, errors: Sequence[float], bar: float, rounding: Sequence[float] = ()) -> Assertion:
    """The median error of the last quarter is at most `GROWTH` times the first quarter's. `bar` limits one
    error. `rounding` is how far integer activations move each step: a tie changes a row of a cache, and
    with it every later step by as much as rounding does.
    """
    steps = len(errors)
    quarter = max(len(errors) // 4, 1)
    first, last = (float(np.median(part)) for part in (errors[:quarter], errors[-quarter:]))
    limit = max(GROWTH * first, bar / 10)  # below a tenth of the bar it may be rounding
    if rounding:
        limit = max(limit, ROUNDING_FACTOR * float(np.median(rounding[-quarter:])))
    detail = (
        f"median error {first:.1e} in the first quarter of {steps} steps, {last:.1e} in the last, "
        f"limit {limit:.1e}"
    )
    return Assertion(name, last <= limit, detail)


def check_replay(context: Context) -> Iterable[Assertion]:
    """Reset and replay give the same bits, and two interleaved streams give what each gives separately.

    Sliding-window caches are full before, one graph at a time.
    """
    steps = [graph[-1] for graph in context.stateful_graphs()]
    if not steps:
        yield Assertion("replay", True, "no component has states", left_out=True)
        return
    with_window = [[step] for step in steps if has_window(step)]
    found = [_replay(context, some) for some in with_window or [steps]]
    repeated, interleaved = (all(results) for results in zip(*found, strict=True))
    yield Assertion("reset and replay", repeated, "compared bit for bit")
    yield Assertion("two interleaved streams", interleaved, "compared bit for bit with each run separately")


def _replay(context: Context, steps: list[Component]) -> tuple[bool, bool]:
    """Whether calls of these components give the same after a reset, and between calls of another stream."""
    runs = [_calls(context, steps, seed) for seed in (1, 2)]
    windows = {state.name for step in steps for state in step.signature.states if state.window}
    full = full_states(context.engines.eager, windows)

    def restart(stream: Stream) -> Stream:
        stream.reset()
        if windows:
            stream.load(full)
        return stream

    def run_alone(calls: list[Call]) -> list[Arrays]:
        restart(stream)
        return [stream.run(*call) for call in calls]

    stream = context.engines.artifact.stream()
    separate = [run_alone(calls) for calls in runs]
    repeated = _are_equal(separate[0], run_alone(runs[0]))
    pair = [restart(stream), restart(context.engines.artifact.stream())]
    interleaved = [
        [one.run(*call) for one, call in zip(pair, calls, strict=True)] for calls in zip(*runs, strict=True)
    ]
    return repeated, all(map(_are_equal, zip(*separate, strict=True), interleaved))


def _calls(context: Context, steps: list[Component], seed: int) -> list[Call]:
    """A prefill of every decoder, then steps of all components in turns, across the end of windows."""
    half, calls, first = MAX_ROWS // 2, [], dict.fromkeys((step.name for step in steps), 0)
    for decoder in context.plan.decoders:
        prefill = context.components[decoder.prefill]
        if not has_window(prefill):
            calls.append((prefill.name, largest_example(prefill, seed, half)))
            first[decoder.step] = half
    for step in steps:
        cache = step.signature.cache
        if cache and cache.window:
            first[step.name] = cache.positions - context.extent.replay_steps // 2
    return calls + [
        (step.name, at_position(step.example(seed + index), first[step.name] + index))
        for index in range(context.extent.replay_steps)
        for step in steps
    ]


def _are_equal(first: Iterable[Arrays], second: Iterable[Arrays]) -> bool:
    return all(np.array_equal(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a)


def check_free_run(context: Context) -> Iterable[Result]:
    """A run of the artifact that continues from its own codes is finite, and not empty unless eager's is.

    Its distance from eager, and the distance of eager from full precision, are reported.
    """
    workload, constants = context.workload, context.constants
    steps, engines = context.extent.free_steps, context.engines
    eager = workload.free_run(engines.eager.stream(), constants, steps)
    artifact = workload.free_run(engines.artifact.stream(), constants, steps)
    passed = bool(np.isfinite(artifact).all()) and bool(len(artifact)) >= bool(len(eager))
    yield Assertion("free run", passed, "finite" if passed else "empty, or with values that are not finite")
    yield from (
        FreeRun("free run", name, values) for name, values in (("eager", eager), ("artifact", artifact))
    )
    if passed:
        yield Measurement("free run, artifact and eager", workload.compare(artifact, eager, constants))
    if engines.full:
        full = workload.free_run(engines.full.stream(), constants, steps)
        yield FreeRun("free run", "full precision", full)
        yield Measurement("free run, eager and full precision", workload.compare(eager, full, constants))


def check_long_codes(context: Context) -> Iterable[Assertion | Measurement]:
    """Frames with the history of full precision, and as many that continue from their own codes, of a family
    whose frames feed many codes back. A recipe may pass every short check and still end in noise or silence
    after a minute of speech.

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
