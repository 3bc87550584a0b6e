"""Checks of components: single calls, last positions of caches, batches, and inputs in chunks."""

import logging
from collections.abc import Iterable, Sequence

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.bundle.spec import Kind
from voxport.export.verify.comparison import Assertion, Comparison, least_margin
from voxport.export.verify.context import (
    Context,
    add_outputs,
    add_states,
    at_position,
    equal_rows,
    full_states,
    has_window,
)
from voxport.export.verify.modes import MAX_ROWS
from voxport.model.family import ChunkedComponent
from voxport.model.graph import Component
from voxport.runtime.engines.base import Arrays, Engine, Stream

CHUNKS = (1, 3, 7)  # sizes, besides the largest
log = logging.getLogger(__name__)


def check_components(context: Context) -> Iterable[Comparison | Assertion]:
    """Every output, and every state after the call, for several seeds and sizes.

    All sides start from the same states.
    """
    for component in context.components.values():
        log.info("  checking calls of %s", component.name)
        yield from _check_component(context, component)


def _check_component(context: Context, component: Component) -> Iterable[Comparison | Assertion]:
    streams = context.streams(component.name)
    full = context.engines.full.stream() if context.engines.full else None
    outputs = _comparisons(context, component, "outputs")
    states = context.state_comparisons(component.name, "states")
    rest_unchanged = True
    for before, inputs, rows in _calls(context, component, streams[0]):
        results = [_run(stream, before, component, [inputs])[0] for stream in streams]
        exact = _run(full, before, component, [inputs])[0] if full else {}
        add_outputs(outputs, results, exact)
        if states:
            rest_unchanged &= _compare_states(component, before, rows, streams, states)
    for comparison in outputs:
        comparison.quantisation_bar = context.bars.quantisation.get(component.graph)
        yield comparison
    if states:
        yield least_margin(states.values())
        if _has_plain_caches(component):
            detail = "unchanged" if rest_unchanged else "changed"
            yield Assertion(f"{component.name}: rows that are not written", rest_unchanged, detail)


def _comparisons(context: Context, component: Component, check: str) -> list[Comparison]:
    """One for each output, except choices, which the family compares."""
    specs = [spec for spec in component.signature.outputs if spec.kind != Kind.CHOICE]
    return [context.comparison(component.name, spec.name, check) for spec in specs]


def _calls(context: Context, component: Component, artifact: Stream) -> Iterable[tuple[Arrays, Arrays, int]]:
    """The states before each call, its inputs, and the end of the rows that it writes."""
    bounds = artifact.signatures[component.name].dims
    for seed in context.extent.seeds if bounds else context.call_seeds(component.cases):
        position = MAX_ROWS if _is_warm(context, component, seed) else 0
        states = context.start_states(component.graph, seed, position > 0)
        for size in context.extent.sizes if bounds else (1,):
            sizes = {dim: max(low, min(size, high)) for dim, (low, high) in bounds.items()}
            inputs = at_position(component.example(seed, **sizes), position)
            yield states, inputs, position + next(iter(sizes.values()), 1)


def _is_warm(context: Context, component: Component, seed: int) -> bool:
    """Whether the call follows a longer one.

    The steps of a graph do so for every seed. A component that writes a cache from any position does so for
    odd seeds.
    """
    graph = next((graph for graph in context.stateful_graphs() if component in graph), [component])
    return component in graph[1:] or (component.signature.cache is not None and seed % 2 == 1)


def _run(stream: Stream, states: Arrays, component: Component, calls: Sequence[Arrays]) -> list[Arrays]:
    """Outputs of consecutive calls, the first from `states`."""
    stream.load(states)
    return [stream.run(component.name, inputs) for inputs in calls]


def _compare_states(
    component: Component, before: Arrays, rows: int, streams: list[Stream], compared: dict[str, Comparison]
) -> bool:
    """Adds every state, of a cache the rows up to the last one written.

    Returns whether the artifact left the other rows as they were `before`, to the bit.
    """
    specs, is_plain = component.signature.states, _has_plain_caches(component)
    found = [stream.save(component.name, rows if is_plain else None) for stream in streams]
    add_states(compared, found)
    return not is_plain or equal_rows(streams[0].save(component.name), before, specs, slice(rows, None))


def _has_plain_caches(component: Component) -> bool:
    """Whether its states are caches whose rows are written once, from the first to the last."""
    return all(state.cache and state.window is None for state in component.signature.states)


def check_last_positions(context: Context) -> Iterable[Comparison | Assertion]:
    """The last row of a cache works like any other, and the position after the last one is refused.

    A sliding-window cache is checked at its last row and beyond, and at the last position of a stream.
    Components of one graph are programs of their own, and compute positions from different sizes.
    """
    for component in context.components.values():
        if not component.signature.cache:
            continue
        last = (component.signature.capacity or 0) - 1
        yield _run_from_full_caches(context, component, last)
        name = f"{component.name}: one past the last position is refused"
        try:
            context.engines.artifact.stream().run(component.name, _shortest_call(component, 0, last + 1))
            yield Assertion(name, False, f"position {last + 1} ran")
        except UsageError as error:
            yield Assertion(name, True, f"by the runtime: {error}")


def _run_from_full_caches(context: Context, component: Component, last: int) -> Comparison:
    seeds, output = context.call_seeds(), component.signature.outputs[0].name
    runs: list[Sequence[int]] = [(last,)]
    if has_window(component) and (cache := component.signature.cache):
        runs.insert(0, range(cache.positions - 1, cache.positions + context.extent.past_window))
    compared = context.comparison(component.name, output, "last position")
    filled = full_states(context.engines.eager, {state.name for state in component.signature.states})
    for index in range(max(len(runs), len(seeds))):
        seed, positions = seeds[index % len(seeds)], runs[index % len(runs)]
        calls = [_shortest_call(component, seed + position, position) for position in positions]
        found = [
            _run(engine.stream(), filled, component, calls)  # one stream with full caches at a time
            for engine in context.compared(component.name)
        ]
        for results in zip(*found, strict=True):
            add_outputs([compared], results)
    return compared


def _shortest_call(component: Component, seed: int, position: int) -> Arrays:
    """Inputs with the fewest rows, because behind the last position there is no room for more."""
    fewest = {dim: low for dim, (low, _) in component.signature.dims.items()}
    return at_position(component.example(seed, **fewest), position)


def check_batches(context: Context) -> Iterable[Comparison]:
    """Each slot of a batch gives what eager gives for its inputs in a batch of 1.

    Batches of 2 and of the largest size of each component, with every slot at another position.
    """
    for component in context.components.values():
        largest = context.max_batch.get(component.name, 1)
        for size in sorted({2, largest}) if largest > 1 else ():
            yield from _check_batch(context, component, context.engines.artifact.batched(size))


def _check_batch(context: Context, component: Component, stream: Stream) -> Iterable[Comparison]:
    check, has_cache = f"batch of {stream.batch}", component.signature.cache is not None
    spacing = MAX_ROWS // max(stream.batch - 1, 1)  # the last slot is at or near position 0
    positions = [MAX_ROWS - spacing * index if has_cache else 0 for index in range(stream.batch)]
    calls = [at_position(component.example(seed), position) for seed, position in enumerate(positions)]
    starts = [context.start_rows(component.graph, row, row) for row in positions] if has_cache else []
    for index, rows in enumerate(starts):
        stream.slot(index).load(rows)
    found = stream.run(
        component.name, {name: np.concatenate([call[name] for call in calls]) for name in calls[0]}
    )
    outputs = _comparisons(context, component, check)
    cached = {state.name for state in component.signature.states if state.cache}
    states = context.state_comparisons(component.name, check)
    caches = {name: comparison for name, comparison in states.items() if name in cached}
    for index, call in enumerate(calls):
        references = context.streams(component.name)[1:]
        for reference in references if has_cache else ():
            reference.load(starts[index])
        own = {name: array[index : index + 1] for name, array in found.items()}
        add_outputs(outputs, [own, *(reference.run(component.name, call) for reference in references)])
        if has_cache:
            written = [
                side.save(component.name, positions[index] + 1) for side in (stream.slot(index), *references)
            ]
            add_states(caches, written)
    yield from [*outputs, least_margin(caches.values())] if has_cache else outputs


def check_streaming(context: Context) -> Iterable[Comparison | Assertion]:
    """Chunks of any size give what one call for the whole input gives.

    They run through the component for chunks if it takes their size, otherwise through the whole one.
    """
    if not context.plan.chunked:
        reason = "the family has no component that takes chunks"
        yield Assertion("chunks equal whole", True, reason, left_out=True)
    for chunked in context.plan.chunked:
        yield _check_chunks(context, chunked)


def _check_chunks(context: Context, chunked: ChunkedComponent) -> Comparison:
    component, count, engines = context.components[chunked.whole], context.extent.chunked, context.engines
    chunk = context.components.get(chunked.chunk)
    name, output = component.signature.inputs[0].name, component.signature.outputs[0].name
    dim, (_, largest) = next(iter(component.signature.dims.items()))
    example = component.example(11, **{dim: count})

    def run(engine: Engine, size: int) -> np.ndarray:
        called = chunk if chunk and (size == 1 or chunk.signature.dims) else component
        calls = [
            at_position({**example, name: example[name][:, start : start + size]}, start)
            for start in range(0, count, size)
        ]
        stream = engine.stream()
        return np.concatenate([stream.run(called.name, inputs)[output] for inputs in calls], axis=1)

    compared = context.comparison(component.name, output, "chunks equal whole")
    whole = run(engines.eager, min(count, largest))
    largest = engines.artifact.stream().signatures[component.name].dims[dim][1]
    for size in sorted({min(size, largest, count) for size in (*CHUNKS, count)}):
        artifact, _, *others = context.compared(component.name)
        compared.add(run(artifact, size), whole, *(run(engine, size) for engine in others))
    return compared
