"""Checks of many calls in sequence: long runs of decode steps, and reset, replayed or interleaved streams."""

import logging
from collections.abc import Iterable

import numpy as np

from export.verify.comparison import TIE_FACTOR, Check, Comparison, median_of_quarters
from export.verify.context import Context, has_window
from export.verify.start_states import MAX_ROWS, at_position, full_states, largest_example
from model.component import Component
from model.family import Decoder
from runtime.engines.base import Arrays, Stream

log = logging.getLogger(__name__)
LOG_INTERVAL = 200  # steps of a long run between two lines of progress
STRETCH = 25  # steps of a long run; where ties may differ, both sides then continue from the same states
PERTURBED_EVERY = 4  # stretches; in one of them eager is also compared with itself
GROWTH = (
    7  # of the error from the first quarter of a long run to the last: at most linear in the number of rows
)
Call = tuple[str, Arrays]  # a component and its inputs


def check_long_runs(context: Context, steps: int) -> Iterable[Comparison | Check]:
    """`steps` decode steps of every decoder after a prefill, with the same inputs for all sides."""
    if not context.plan.decoders:
        yield Check("long run", True, "left out: the family has no decoder")
    for decoder in context.plan.decoders:
        step = context.components[decoder.step]
        count = steps if has_window(step) else min(steps, (step.signature.capacity or 0) - MAX_ROWS)
        if count:
            yield from _LongRun(context, decoder, count).results()


class _LongRun:
    """One long run.

    With float activations each side keeps its own states throughout. With integer activations a tie that
    rounds differently stays in the cache and affects later ones. All sides therefore continue from eager's
    states every `STRETCH` steps, after these were compared. In both cases a row never changes after it was
    written, to the bit.
    """

    def __init__(self, context: Context, decoder: Decoder, steps: int):
        self._context, self._decoder, self._steps = context, decoder, steps
        self._step = context.components[decoder.step]
        check = f"{steps} steps"
        self._outputs = context.comparison(decoder.step, decoder.output, check)
        self._caches = context.comparison(decoder.step, "states", check)
        self._streams = context.streams(decoder.step)
        self._unchanged = True

    def results(self) -> Iterable[Comparison | Check]:
        self._run()
        yield self._outputs
        yield self._caches
        suffix = f": {self._step.name}" if len(self._context.plan.decoders) > 1 else ""
        if not has_window(self._step):
            detail = f"{'unchanged' if self._unchanged else 'changed'} over {self._steps} steps, to the bit"
            yield Check(f"written rows{suffix}", self._unchanged, detail)
        yield _drift(self._outputs, self._steps, self._context.bars.lowering).suffixed(suffix)

    def _run(self) -> None:
        prefill = self._context.components[self._decoder.prefill]
        start = at_position(largest_example(prefill, 7), 0)
        for stream in self._streams:
            stream.run(prefill.name, start)
        before = self._streams[0].save_rows(MAX_ROWS)
        for first in range(0, self._steps, STRETCH):
            is_perturbed = first // STRETCH % PERTURBED_EVERY == 0
            active = self._streams if is_perturbed else self._streams[:2]
            if self._context.is_integer(self._step.name):
                states = self._streams[1].snapshot()
                for stream in active:
                    stream.restore(states)
                before = self._streams[0].save_rows(
                    MAX_ROWS + first
                )  # the artifact may round them to half precision
            before = self._stretch(active, range(first, min(first + STRETCH, self._steps)), before)

    def _stretch(self, active: list[Stream], indices: range, before: Arrays) -> Arrays:
        """Runs the steps, compares their outputs and then all rows. Returns the artifact's rows."""
        for index in indices:
            if index and index % LOG_INTERVAL == 0:
                log.info("    %d of %d steps", index, self._steps)
            inputs = at_position(self._step.example(index), MAX_ROWS + index)
            results = [stream.run(self._step.name, inputs) for stream in active]
            self._outputs.add(*(result[self._decoder.output] for result in results))
        found = [stream.save_rows(MAX_ROWS + indices.stop) for stream in active]
        old_rows = range(0 if has_window(self._step) else MAX_ROWS + indices.start)
        for state in self._step.signature.states:
            self._caches.add(*(rows[state.name] for rows in found))
            axis = state.cache.row_axis if state.cache else 0
            old, new = (np.take(rows[state.name], old_rows, axis) for rows in (before, found[0]))
            self._unchanged = self._unchanged and np.array_equal(old, new)
        return found[0]


def _drift(compared: Comparison, steps: int, float_bar: float) -> Check:
    first, last = median_of_quarters(compared.errors)
    ties = float(np.median(compared.perturbed_errors)) if compared.perturbed_errors else 0.0
    limit = max(
        GROWTH * first, TIE_FACTOR * ties, float_bar / 10
    )  # below a tenth of the bar it may be rounding
    detail = (
        f"median error {first:.1e} in the first quarter of {steps} steps, {last:.1e} in the last, "
        f"limit {limit:.1e}"
    )
    return Check("no drift", last <= limit, detail)


def check_replay(context: Context) -> Iterable[Check]:
    """Reset and replay give the same bits, and two interleaved streams give what each gives separately.

    Sliding-window caches are full before, those of one graph at a time.
    """
    steps = [graph[-1] for graph in context.stateful_graphs()]
    if not steps:
        yield Check("replay", True, "left out: no component has states")
        return
    with_window = [[step] for step in steps if has_window(step)]
    found = [_replay(context, some) for some in with_window or [steps]]
    repeated, interleaved = (all(results) for results in zip(*found, strict=True))
    yield Check("reset and replay", repeated, "compared bit for bit")
    yield Check("two interleaved streams", interleaved, "compared bit for bit with each run separately")


def _replay(context: Context, steps: list[Component]) -> tuple[bool, bool]:
    """Whether calls of these components give the same after a reset, and between calls of another stream."""
    runs = [_calls(context, steps, seed) for seed in (1, 2)]
    windows = {state.name for step in steps for state in step.signature.states if state.window}
    full = full_states(context.engines.eager, windows)

    def restart(stream: Stream) -> Stream:
        stream.reset()
        if windows:
            stream.restore(full)
        return stream

    stream = context.engines.artifact.stream()
    separate = []
    for calls in runs:
        restart(stream)
        separate.append([stream.run(*call) for call in calls])
    restart(stream)
    repeated = _are_equal(separate[0], [stream.run(*call) for call in runs[0]])
    pair = [restart(stream), restart(context.engines.artifact.stream())]
    mixed: list[list[Arrays]] = [[], []]
    for calls_of_both in zip(*runs, strict=True):
        for index, call in enumerate(calls_of_both):
            mixed[index].append(pair[index].run(*call))
    return repeated, all(_are_equal(a, b) for a, b in zip(separate, mixed, strict=True))


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
    for index in range(context.extent.replay_steps):
        for step in steps:
            calls.append((step.name, at_position(step.example(seed + index), first[step.name] + index)))
    return calls


def _are_equal(first: list[Arrays], second: list[Arrays]) -> bool:
    return all(np.array_equal(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a)
