"""The checks of a bundle: one function per question of the design's table, each over two or three streams.

`artifact`, `eager` and `full` are streams of the same components: the compiled ones, eager with the artifact's integers
and activation arithmetic, and eager in full precision; `reordered` is eager under another order of float sums.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import numpy as np

from bundle.errors import UsageError, VoxportError
from export.verify.comparison import TIES, Comparison, Fact, median_of_quarters, relative_distance
from export.verify.context import LONG, Context, NewStream
from model.component import Component
from runtime.engines.base import Stream
from runtime.engines.states import Arrays

log = logging.getLogger(__name__)
SHORTEST_CACHE = 64  # rows: what the checks below write, 2 · LONG and one utterance of `agreement`
TOLD = 200  # steps of a long run between two lines of progress
SAME_STATES = 25  # steps of a long run after which both sides go on from the same states, where ties may flip
WITH_TIES = 4  # in one of so many of these stretches eager is compared with itself as well
APART = 997  # numbers between the beginnings of two states' noise; a prime, so that no row of one is a row of another
GROWTH = 7  # of errors in a long run: at most with the number of rows, 7 times as many in the last quarter as in the first


def each_component(context: Context) -> Iterable[Comparison | Fact]:
    """Every output, and every state after the call, over seeds and sizes; each call starts from the same states."""
    for component in context.components.values():
        streams = context.streams(component.name)
        full = context.full() if context.full else None
        compared = {
            spec.name: context.comparison(component.name, spec.name, "outputs")
            for spec in component.signature.outputs
        }
        states = (
            context.comparison(component.name, "states", "states") if component.signature.states else None
        )
        rest_kept = True
        for comparison in compared.values():
            comparison.quantisation_bar = context.quantisation_bar(component.name)
        bounds = streams[0].signatures[component.name].dims
        for seed in context.extent.seeds:
            position = LONG if starts_warm(component, seed) else 0
            start = _states_at(context, component, seed, position)
            for size in context.extent.sizes if bounds else (1,):
                sizes = {dim: min(size, high) for dim, (_, high) in bounds.items()}
                inputs = _at(component.example(seed, **sizes), position)
                results = _run_from(start, streams, component.name, inputs)
                for name, comparison in compared.items():
                    comparison.add(*(result[name] for result in results))
                if full:
                    exact = _run_from(start, [full], component.name, inputs)[0]
                    for name, comparison in compared.items():
                        comparison.quantisation.append(relative_distance(results[1][name], exact[name]))
                if states:
                    kept = _compare_states(
                        context, component, states, streams, position + next(iter(sizes.values()), 1), start
                    )
                    rest_kept = rest_kept and kept
        yield from compared.values()
        if states:
            yield states
        if states and _has_plain_cache(component):
            yield Fact(
                f"{component.name}: rows that are not written",
                rest_kept,
                "as they were" if rest_kept else "changed",
            )


def _run_from(states: Arrays, streams: list[Stream], component: str, inputs: Arrays) -> list[Arrays]:
    results = []
    for stream in streams:
        stream.restore(states)
        results.append(stream.run(component, inputs))
    return results


def _compare_states(
    context: Context,
    component: Component,
    compared: Comparison,
    streams: list[Stream],
    rows: int,
    start: Arrays,
) -> bool:
    """Adds every state up to the last row written; true where what lies beyond is in the artifact as it was, to the bit."""
    names = [state.name for state in component.signature.states]
    if not _has_plain_cache(component):
        snapshots = [stream.snapshot() for stream in streams]
        for name in names:
            compared.add(*(states[name] for states in snapshots))
        return True
    written = [stream.save_rows(rows) for stream in streams]
    for name in names:
        compared.add(*(states[name] for states in written))
    now = streams[0].snapshot()
    return all(
        np.array_equal(context.beyond(now[name], rows), context.beyond(start[name], rows)) for name in names
    )


def _has_plain_cache(component: Component) -> bool:
    """Whether its states are rows that are written once, from the first to the last."""
    return all(state.cache and state.window is None for state in component.signature.states)


def starts_warm(component: Component, seed: int) -> bool:
    """Steps start from states that a longer call left; what writes a cache from any position on does so every other time."""
    has_cache = any(state.cache for state in component.signature.states)
    return bool(component.signature.states) and (
        component.name.endswith(("step", "chunk")) or (has_cache and seed % 2 == 1)
    )


def _states_at(context: Context, component: Component, seed: int, position: int) -> Arrays:
    """Eager's states, empty or after a longer call; those of the last such call are kept, for the graph's other component."""
    key = (component.graph, seed, position > 0)
    if context.last_states is None or context.last_states[0] != key:
        stream = context.eager()
        if position:
            first = next(other for other in context.components.values() if other.graph == component.graph)
            stream.run(
                first.name,
                first.example(
                    seed + 100, **{dim: min(LONG, high) for dim, (_, high) in first.signature.dims.items()}
                ),
            )
        context.last_states = key, stream.snapshot()
    return context.last_states[1]


def _at(inputs: Arrays, position: int) -> Arrays:
    return {**inputs, "position": np.array([position])} if "position" in inputs else inputs


def long_run(context: Context, steps: int) -> Iterable[Comparison | Fact]:
    """Many decode steps (none: left out) after a prefill, with the same inputs for both; no drift; the last cache position, and
    one past it.

    With float activations each side keeps its own states from first to last. With integer ones a tie that falls differently
    stays in the cache and makes others fall, so all go on from eager's states every `SAME_STATES` steps, after comparing them.
    Whatever the activations, a row once written stays as it is, to the bit.
    """
    prefill, step = context.components["prefill"], context.components["decode_step"]
    integer, rolls = context.is_integer("decode_step"), context.rolls("decode_step")
    streams = context.streams("decode_step")
    start = _at(prefill.example(7, S=LONG), 0)
    steps = steps if rolls else min(steps, streams[0].capacity("decode_step") - LONG)
    if not steps:
        yield from last_position(context)
        return
    names = [state.name for state in step.signature.states]
    compared, caches = (
        context.comparison("decode_step", what, f"{steps} steps") for what in ("hidden", "states")
    )
    for stream in streams:
        stream.run("prefill", start)
    before, kept = streams[0].save_rows(LONG), True
    for index in range(steps):
        if index and index % TOLD == 0:
            log.info("    %d of %d steps", index, steps)
        active = streams if index // SAME_STATES % WITH_TIES == 0 else streams[:2]
        if integer and index % SAME_STATES == 0:
            start_again = streams[1].snapshot()
            for stream in active:
                stream.restore(start_again)
            before = streams[0].save_rows(LONG + index)  # which may hold them in half precision
        inputs = _at(step.example(index), LONG + index)
        compared.add(*(stream.run("decode_step", inputs)["hidden"] for stream in active))
        if (index + 1) % SAME_STATES == 0 or index + 1 == steps:
            found = [stream.save_rows(LONG + index + 1) for stream in active]
            for name in names:
                caches.add(*(rows[name] for rows in found))
            written = LONG + index // SAME_STATES * SAME_STATES  # before this stretch
            axis, places = context.cache_axis, range(0 if rolls else written)
            kept = kept and all(
                np.array_equal(np.take(before[name], places, axis), np.take(found[0][name], places, axis))
                for name in names
            )
            before = found[0]
    yield compared
    yield caches
    if not rolls:
        yield Fact(
            "written rows stay", kept, f"{'unchanged' if kept else 'changed'} over {steps} steps, to the bit"
        )
    yield _drift(compared, steps, context.float_bar)
    yield from last_position(context)


def _drift(compared: Comparison, steps: int, float_bar: float) -> Fact:
    first, last = median_of_quarters(compared.errors)
    ties = float(np.median(compared.ties)) if compared.ties else 0.0
    limit = max(
        GROWTH * first, TIES * ties, float_bar / 10
    )  # below a tenth of the bar nothing is told from rounding
    return Fact(
        "no drift",
        last <= limit,
        f"median error {first:.1e} in the first quarter of {steps} steps, {last:.1e} in the last, limit {limit:.1e}",
    )


def last_position(context: Context) -> Iterable[Comparison | Fact]:
    """The last row of the cache is used like any other; a position one past it is refused. A cache that rolls is used at its last row and
    on beyond it, and at the last position of all; that is where it ends."""
    stepped = [graph[-1] for graph in _stateful_graphs(context) if context.rolls(graph[-1].name)] or [
        context.components["decode_step"]
    ]
    for component in stepped:
        cache = component.signature.states[-1]
        last = (component.signature.capacity or 0) - 1
        rows = cache.positions
        yield from _from_full_caches(
            context,
            component,
            (tuple(range(rows - 1, rows + context.extent.beyond)), (last,)) if cache.window else ((last,),),
        )
        try:
            context.artifact().run(component.name, _at(component.example(0), last + 1))
            yield Fact(
                f"{component.name}: one past the last position is refused", False, f"position {last + 1} ran"
            )
        except UsageError as error:
            yield Fact(
                f"{component.name}: one past the last position is refused", True, f"by the runtime: {error}"
            )


def _from_full_caches(
    context: Context, component: Component, runs: tuple[tuple[int, ...], ...]
) -> Iterable[Comparison]:
    """Runs of positions one after another, each run from the same full caches."""
    compared, output = (
        context.comparison(component.name, component.signature.outputs[0].name, "last position"),
        component.signature.outputs[0].name,
    )
    filled = _full_states(context, {state.name for state in component.signature.states})
    for index in range(max(len(runs), len(context.extent.seeds))):
        seed, positions = context.extent.seeds[index % len(context.extent.seeds)], runs[index % len(runs)]
        found = []
        for make in context.makers(component.name):  # full caches, of one stream at a time
            stream = make()
            stream.restore(filled)
            found.append(
                [
                    stream.run(component.name, _at(component.example(seed + position), position))[output]
                    for position in positions
                ]
            )
            del stream
        for results in zip(*found, strict=True):
            compared.add(*results)
    yield compared


def _full_states(context: Context, names: set[str]) -> Arrays:
    """A snapshot of noise in the states of these names, and of zeros in the others. The noise of each begins elsewhere in the same memory:
    full caches of the published size take half a gigabyte."""
    states = context.eager().snapshot()
    sizes = {name: states[name].size for name in sorted(names)}
    noise = 0.5 * np.random.default_rng(3).standard_normal(
        max(sizes.values(), default=0) + APART * len(sizes), dtype=np.float32
    )
    for index, (name, size) in enumerate(sizes.items()):
        states[name] = noise[APART * index :][:size].reshape(states[name].shape)
    return states


def _stateful_graphs(context: Context) -> list[list[Component]]:
    """Components with states, graph by graph; the last of each takes the smallest steps."""
    graphs: dict[str, list[Component]] = {}
    for component in context.components.values():
        if component.signature.states:
            graphs.setdefault(component.graph, []).append(component)
    return list(graphs.values())


def replay(context: Context) -> Iterable[Fact]:
    """Reset and replay give the same bits; two interleaved streams give what each gives alone. Caches that roll are full before, those of
    one graph at a time."""
    steps = [graph[-1] for graph in _stateful_graphs(context)]
    rolling = [[step] for step in steps if context.rolls(step.name)]
    found = [_replayed(context, part) for part in rolling or [steps]]
    again, apart = (all(facts) for facts in zip(*found, strict=True))
    yield Fact("reset and replay", again, "compared bit for bit")
    yield Fact("two interleaved streams", apart, "compared bit for bit with each alone")


def _replayed(context: Context, steps: list[Component]) -> tuple[bool, bool]:
    """Whether calls of these components give the same when they are made again, and between those of another stream."""
    utterances = [_calls(context, steps, seed) for seed in (1, 2)]
    full = _full_states(
        context, {state.name for step in steps for state in step.signature.states if state.window}
    )

    def begun(stream: Stream) -> Stream:
        stream.reset()
        if any(state.window for step in steps for state in step.signature.states):
            stream.restore(full)
        return stream

    stream = context.artifact()
    alone = []
    for calls in utterances:
        begun(stream)
        alone.append([stream.run(*call) for call in calls])
    begun(stream)
    again = _same(alone[0], [stream.run(*call) for call in utterances[0]])
    pair = [begun(stream), begun(context.artifact())]
    mixed: list[list[Arrays]] = [[], []]
    for together in zip(*utterances, strict=True):
        for which, call in enumerate(together):
            mixed[which].append(pair[which].run(*call))
    return again, all(_same(a, b) for a, b in zip(alone, mixed, strict=True))


def at_once(context: Context) -> Iterable[Comparison]:
    """What a call for several streams gives each is what eager gives it alone, whatever the others are and wherever they stand."""
    if context.batched is None:
        return
    most = context.max_batch
    for component in context.components.values():
        for count in sorted({2, most[component.name]}) if most[component.name] > 1 else ():
            yield from _together(context, component, context.batched(count))


def _together(context: Context, component: Component, stream: Stream) -> Iterable[Comparison]:
    has_cache, check = any(state.cache for state in component.signature.states), f"{stream.batch} at once"
    apart = LONG // max(stream.batch - 1, 1)  # the last stands at the beginning
    positions = [LONG - apart * index if has_cache else 0 for index in range(stream.batch)]
    calls = [_at(component.example(seed), position) for seed, position in enumerate(positions)]
    rows = [_rows_at(context, component, position) for position in positions] if has_cache else []
    for index, kept in enumerate(rows):
        stream.slot(index).load_rows(kept)
    found = stream.run(
        component.name, {name: np.concatenate([call[name] for call in calls]) for name in calls[0]}
    )
    compared = {
        spec.name: context.comparison(component.name, spec.name, check)
        for spec in component.signature.outputs
    }
    caches = context.comparison(component.name, "states", check)
    for index, call in enumerate(calls):
        references = context.streams(component.name)[1:]
        for reference in references if has_cache else []:
            reference.load_rows(rows[index])
        results = [reference.run(component.name, call) for reference in references]
        for name, comparison in compared.items():
            comparison.add(found[name][index : index + 1], *(result[name] for result in results))
        if has_cache:
            written = [each.save_rows(positions[index] + 1) for each in (stream.slot(index), *references)]
            for name in written[0]:
                caches.add(*(rows[name] for rows in written))
    yield from compared.values()
    if has_cache:
        yield caches


def _rows_at(context: Context, component: Component, position: int) -> Arrays:
    """So many rows of eager's caches after a longer call."""
    states = _states_at(context, component, position, position)
    return {
        state.name: np.take(states[state.name], range(position), context.cache_axis)
        for state in component.signature.states
    }


def _calls(context: Context, steps: list[Component], seed: int) -> list[tuple[str, Arrays]]:
    """A prefill, and then steps of every component in turns; where caches roll, across their end."""
    calls = (
        []
        if context.rolls("prefill")
        else [("prefill", context.components["prefill"].example(seed, S=LONG // 2))]
    )
    for index in range(context.extent.replayed):
        for step in steps:
            cache = step.signature.states[-1]
            first = LONG // 2 if step.name == "decode_step" else 0
            if cache.window:
                first = cache.positions - context.extent.replayed // 2
            calls.append((step.name, _at(step.example(seed + index), first + index)))
    return calls


def _same(first: list[Arrays], second: list[Arrays]) -> bool:
    return all(np.array_equal(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a)


def streaming(context: Context) -> Iterable[Comparison]:
    """Chunks of any size, through the component for chunks where it takes them, and calls as long as the artifact takes add up to
    eager's whole."""
    frames, (whole_name, step_name) = context.extent.streamed, context.chunked
    component, steps = context.components[whole_name], context.components.get(step_name)
    given, output = component.signature.inputs[0].name, component.signature.outputs[0].name
    compared = context.comparison(whole_name, output, "chunks equal whole")
    values = component.example(11, T=frames)[given]

    def decode(make: NewStream, size: int) -> np.ndarray:
        stream = make()
        name = step_name if steps and (size == 1 or steps.signature.dims) else whole_name
        pieces = [
            stream.run(name, {given: values[:, start : start + size], "position": np.array([start])})[output]
            for start in range(0, frames, size)
        ]
        return np.concatenate(pieces, axis=1)

    most = component.signature.dims["T"][1]
    whole = decode(context.eager, min(frames, most))
    most = context.artifact().signatures[whole_name].dims["T"][1]
    for size in sorted({min(size, most, frames) for size in (1, 3, 7, frames)}):
        compared.add(
            decode(context.artifact, size),
            whole,
            decode(context.reordered, size) if context.is_integer(whole_name) else None,
        )
    yield compared


def guarded(checks: Iterable[Comparison | Fact], name: str) -> Iterable[Comparison | Fact]:
    """An engine that fails outright, or gives arrays that nothing fits, is a failed check, not a crash of the checker."""
    try:
        yield from checks
    except (VoxportError, ArithmeticError, LookupError, ValueError) as error:
        yield Fact(name, False, f"{type(error).__name__}: {error}")
