"""The check of batched calls: each slot of a batch gives what eager gives for its inputs in a batch of 1."""

from collections.abc import Iterable

import numpy as np

from export.verify.comparison import Comparison
from export.verify.context import Context, has_cache
from export.verify.start_states import MAX_ROWS, at_position
from model.component import Component
from runtime.engines.base import Stream


def check_batches(context: Context) -> Iterable[Comparison]:
    """Batches of 2 and of the largest size of each component, with every slot at another position."""
    for component in context.components.values():
        largest = context.max_batch.get(component.name, 1)
        for size in sorted({2, largest}) if largest > 1 else ():
            yield from _check_batch(context, component, context.engines.artifact.batched(size))


def _check_batch(context: Context, component: Component, stream: Stream) -> Iterable[Comparison]:
    check, cached = f"batch of {stream.batch}", has_cache(component)
    spacing = MAX_ROWS // max(stream.batch - 1, 1)  # the last slot is at or near position 0
    positions = [MAX_ROWS - spacing * index if cached else 0 for index in range(stream.batch)]
    calls = [at_position(component.example(seed), position) for seed, position in enumerate(positions)]
    starts = (
        [context.start_states.rows(component.graph, position, position) for position in positions]
        if cached
        else []
    )
    for index, rows in enumerate(starts):
        stream.slot(index).load_rows(rows)
    inputs = {name: np.concatenate([call[name] for call in calls]) for name in calls[0]}
    found = stream.run(component.name, inputs)
    outputs = [context.comparison(component.name, spec.name, check) for spec in component.signature.outputs]
    caches = context.comparison(component.name, "states", check)
    for index, call in enumerate(calls):
        references = context.streams(component.name)[1:]
        if cached:
            for reference in references:
                reference.load_rows(starts[index])
        results = [reference.run(component.name, call) for reference in references]
        for comparison in outputs:
            name = comparison.output
            comparison.add(found[name][index : index + 1], *(result[name] for result in results))
        if cached:
            _compare_rows(component, [stream.slot(index), *references], positions[index] + 1, caches)
    yield from outputs
    if cached:
        yield caches


def _compare_rows(component: Component, streams: list[Stream], count: int, compared: Comparison) -> None:
    written = [stream.save_rows(count) for stream in streams]
    for state in component.signature.states:
        if state.cache:
            compared.add(*(rows[state.name] for rows in written))
