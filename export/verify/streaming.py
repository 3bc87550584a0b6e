"""The check of streaming: chunks of any size give what one call for the whole input gives."""

from collections.abc import Iterable

import numpy as np

from export.verify.comparison import Check, Comparison
from export.verify.context import Context
from export.verify.start_states import at_position
from model.family import ChunkedComponent
from runtime.engines.base import Engine

CHUNKS = (1, 3, 7)  # sizes, besides the largest


def check_streaming(context: Context) -> Iterable[Comparison | Check]:
    """Chunks run through the component for chunks where it takes their size, otherwise the whole one."""
    if not context.plan.chunked:
        yield Check("chunks equal whole", True, "left out: the family has no component that takes chunks")
    for chunked in context.plan.chunked:
        yield _check_chunks(context, chunked)


def _check_chunks(context: Context, chunked: ChunkedComponent) -> Comparison:
    component, count, engines = context.components[chunked.whole], context.extent.chunked, context.engines
    chunk = context.components.get(chunked.chunk)
    name, output = component.signature.inputs[0].name, component.signature.outputs[0].name
    dim, (_, largest) = next(iter(component.signature.dims.items()))
    example = component.example(11, **{dim: count})

    def run(engine: Engine, size: int) -> np.ndarray:
        stream = engine.stream()
        called = chunk if chunk and (size == 1 or chunk.signature.dims) else component
        pieces = []
        for start in range(0, count, size):
            inputs = {**example, name: example[name][:, start : start + size]}
            pieces.append(stream.run(called.name, at_position(inputs, start))[output])
        return np.concatenate(pieces, axis=1)

    compared = context.comparison(component.name, output, "chunks equal whole")
    whole = run(engines.eager, min(count, largest))
    largest = engines.artifact.stream().signatures[component.name].dims[dim][1]
    for size in sorted({min(size, largest, count) for size in (*CHUNKS, count)}):
        perturbed = run(engines.perturbed, size) if context.is_integer(component.name) else None
        compared.add(run(engines.artifact, size), whole, perturbed)
    return compared
