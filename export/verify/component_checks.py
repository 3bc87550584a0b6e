"""Checks of single calls: every component against eager, and the last positions of its caches."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from bundle.errors import UsageError
from export.verify.comparison import Check, Comparison, relative_distance
from export.verify.context import Context, has_cache, has_window
from export.verify.start_states import MAX_ROWS, at_position, full_states
from model.component import Component
from runtime.engines.base import Arrays, Stream


def check_components(context: Context) -> Iterable[Comparison | Check]:
    """Every output, and every state after the call, for several seeds and sizes.

    All sides start from the same states.
    """
    for component in context.components.values():
        yield from _check_component(context, component)


def _check_component(context: Context, component: Component) -> Iterable[Comparison | Check]:
    streams = context.streams(component.name)
    full = context.engines.full.stream() if context.engines.full else None
    compared = {
        spec.name: context.comparison(component.name, spec.name, "outputs")
        for spec in component.signature.outputs
    }
    for comparison in compared.values():
        comparison.quantisation_bar = context.quantisation_bar(component.name)
    states = context.comparison(component.name, "states", "states")
    rest_unchanged = True
    for call in _calls(context, component, streams[0]):
        results = [_run(call, stream) for stream in streams]
        for name, comparison in compared.items():
            comparison.add(*(result[name] for result in results))
        if full:
            exact = _run(call, full)
            for name, comparison in compared.items():
                comparison.quantisation.append(relative_distance(results[1][name], exact[name]))
        if component.signature.states:
            unchanged = _compare_states(call, streams, states)
            rest_unchanged = rest_unchanged and unchanged
    yield from compared.values()
    if component.signature.states:
        yield states
        if _has_plain_caches(component):
            detail = "unchanged" if rest_unchanged else "changed"
            yield Check(f"{component.name}: rows that are not written", rest_unchanged, detail)


@dataclass(frozen=True)
class _Call:
    """A call of a component from given states. `rows` is the end of the rows that it writes."""

    component: Component
    states: Arrays
    inputs: Arrays
    rows: int


def _calls(context: Context, component: Component, artifact: Stream) -> Iterable[_Call]:
    bounds = artifact.signatures[component.name].dims
    for seed in context.extent.seeds:
        position = MAX_ROWS if _is_warm(context, component, seed) else 0
        states = context.start_states.find(component.graph, seed, position > 0)
        for size in context.extent.sizes if bounds else (1,):
            sizes = {dim: min(size, high) for dim, (_, high) in bounds.items()}
            inputs = at_position(component.example(seed, **sizes), position)
            yield _Call(component, states, inputs, position + next(iter(sizes.values()), 1))


def _is_warm(context: Context, component: Component, seed: int) -> bool:
    """Whether the call follows a longer one.

    The steps of a graph do so for every seed. A component that writes a cache from any position does so for
    odd seeds.
    """
    graph = next((graph for graph in context.stateful_graphs() if component in graph), [component])
    return component in graph[1:] or (has_cache(component) and seed % 2 == 1)


def _run(call: _Call, stream: Stream) -> Arrays:
    stream.restore(call.states)
    return stream.run(call.component.name, call.inputs)


def _compare_states(call: _Call, streams: list[Stream], compared: Comparison) -> bool:
    """Adds every state, of a cache the rows up to the last one written.

    Returns whether the artifact left the other rows unchanged, to the bit.
    """
    specs = call.component.signature.states
    if not _has_plain_caches(call.component):
        snapshots = [stream.snapshot() for stream in streams]
        for spec in specs:
            compared.add(*(states[spec.name] for states in snapshots))
        return True
    written = [stream.save_rows(call.rows) for stream in streams]
    for spec in specs:
        compared.add(*(rows[spec.name] for rows in written))
    after, rest = streams[0].snapshot(), []
    for spec in specs:
        axis = spec.cache.row_axis if spec.cache else 0
        found, before = (np.split(states[spec.name], [call.rows], axis)[1] for states in (after, call.states))
        rest.append(np.array_equal(found, before))
    return all(rest)


def _has_plain_caches(component: Component) -> bool:
    """Whether its states are caches whose rows are written once, from the first to the last."""
    return all(state.cache and state.window is None for state in component.signature.states)


def check_last_positions(context: Context) -> Iterable[Comparison | Check]:
    """The last row of a cache works like any other, and the position after the last one is refused.

    A sliding-window cache is checked at its last row and beyond, and at the last position of a stream.
    """
    for component in (graph[-1] for graph in context.stateful_graphs() if has_cache(graph[-1])):
        last = (component.signature.capacity or 0) - 1
        yield _run_from_full_caches(context, component, last)
        name = f"{component.name}: one past the last position is refused"
        try:
            inputs = at_position(component.example(0), last + 1)
            context.engines.artifact.stream().run(component.name, inputs)
            yield Check(name, False, f"position {last + 1} ran")
        except UsageError as error:
            yield Check(name, True, f"by the runtime: {error}")


def _run_from_full_caches(context: Context, component: Component, last: int) -> Comparison:
    """Calls at consecutive positions, from the same full caches for all sides."""
    seeds, output = context.extent.seeds, component.signature.outputs[0].name
    runs: list[Sequence[int]] = [(last,)]
    if has_window(component) and (cache := component.signature.cache):
        runs.insert(0, range(cache.positions - 1, cache.positions + context.extent.past_window))
    compared = context.comparison(component.name, output, "last position")
    filled = full_states(context.engines.eager, {state.name for state in component.signature.states})
    for index in range(max(len(runs), len(seeds))):
        seed, positions = seeds[index % len(seeds)], runs[index % len(runs)]
        calls = [at_position(component.example(seed + position), position) for position in positions]
        found = []
        for new_stream in context.stream_factories(component.name):  # one stream with full caches at a time
            stream = new_stream()
            stream.restore(filled)
            found.append([stream.run(component.name, inputs)[output] for inputs in calls])
            del stream
        for results in zip(*found, strict=True):
            compared.add(*results)
    return compared
