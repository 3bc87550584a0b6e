"""Eager engines with faults, which replace the artifact in tests of the checks."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import JsonValue

from voxport.bundle.manifest import ExportRequest
from voxport.bundle.spec import LayoutName, StateSpec
from voxport.export.model import Model
from voxport.export.resolve import Source, resolve
from voxport.export.verify.checks import guarded
from voxport.export.verify.comparison import Assertion, Comparison, Measurement, Result
from voxport.export.verify.context import Bars, ComparedEngines, Context
from voxport.export.verify.eager import EagerEngine, perturbed
from voxport.export.verify.modes import Extent
from voxport.quantize.modules import float_activations, int8_per_block
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families import open_family

CACHE = 160
Fault = Callable[[Stream, str, Arrays, Arrays], None]


class FaultyStream(Stream):
    """A stream whose outputs and states a fault may change after every call."""

    def __init__(self, inner: Stream, fault: Fault) -> None:
        super().__init__(inner.signatures)
        self.inner, self.fault, self.calls = inner, fault, 0

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        outputs = {name: array.copy() for name, array in self.inner.run(component, inputs).items()}
        self.calls += 1
        self.fault(self, component, inputs, outputs)
        return outputs

    def change_states(self, change: Callable[[Arrays], None]) -> None:
        states = self.inner.save()
        change(states)
        self.inner.load(states)

    def reset(self) -> None:
        self.inner.reset()

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        return self.inner._save(states, positions)

    def _load(self, states: Arrays) -> None:
        self.inner.load(states)


class BatchedStreams(Stream):
    """A batch whose slots are streams that run one after another. A fault may change inputs and outputs."""

    def __init__(self, make: Callable[[], Stream], size: int, fault: Fault) -> None:
        self.slots = [make() for _ in range(size)]
        super().__init__(self.slots[0].signatures)
        self.batch, self.fault = size, fault

    def slot(self, index: int) -> Stream:
        return self.slots[index]

    def first(self, count: int) -> Stream:
        found = copy(self)
        found.slots, found.batch = self.slots[:count], count
        return found

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        self.fault(self, component, inputs, {})
        results = [
            slot.run(component, {name: array[index : index + 1] for name, array in inputs.items()})
            for index, slot in enumerate(self.slots)
        ]
        outputs = {name: np.concatenate([result[name] for result in results]) for name in results[0]}
        self.fault(self, component, inputs, outputs)
        return outputs

    def reset(self) -> None: ...

    def _save(self, states: Sequence[StateSpec], positions: int | None) -> Arrays:
        return {}

    def _load(self, states: Arrays) -> None: ...


class StreamEngine(Engine):
    """An engine that gets its streams from a function."""

    identity = "test"

    def __init__(
        self, make: Callable[[], Stream], make_batched: Callable[[int], Stream] | None = None
    ) -> None:
        super().__init__()
        self.make, self.make_batched = make, make_batched

    def stream(self) -> Stream:
        return self.make()

    def batched(self, size: int) -> Stream:
        return self.make_batched(size) if self.make_batched else super().batched(size)


class Engines:
    """One model, and contexts that compare it with an eager engine with a fault."""

    def __init__(
        self,
        checkpoint: Path,
        quant: str,
        cache: int = CACHE,
        layout: LayoutName = "BSHD",
        **options: JsonValue,
    ) -> None:
        self.source = Source(checkpoint)
        self.request = ExportRequest(quant=quant, options=options, cache_length=cache)
        self.model = Model(resolve(self.source, self.request), layout)
        self.components = self.model.components
        self.eager = EagerEngine(self.components, self.model.module, layout, int8_per_block)
        self.unrounded = EagerEngine(self.components, self.model.module, layout, float_activations)
        kernel = perturbed(int8_per_block)
        self.perturbed = EagerEngine(self.components, self.model.module, layout, kernel)
        self.integer_graphs = frozenset(
            graph.name
            for graph in self.model.graphs()  # loads each graph, which fills `layer_errors`
            if self.model.layer_errors[graph.name] and not graph.name.startswith("embed")
        )
        self.family = open_family(self.source.family.name)
        self.workload = self.family.verification
        self.constants: Any = resolve(self.source, self.request).constants
        self.extent = Extent(steps=100)

    def faulty(self, fault: Fault) -> StreamEngine:
        return StreamEngine(lambda: FaultyStream(self.eager.stream(), fault))

    def context(
        self,
        artifact: Fault | Engine,
        eager: Engine | None = None,
        full: Engine | None = None,
        quantisation: Mapping[str, float] | None = None,
        max_batch: Mapping[str, int] | None = None,
    ) -> Context:
        """`artifact` is an engine, or a fault in eager."""
        engine = artifact if isinstance(artifact, Engine) else self.faulty(artifact)
        return Context(
            {component.name: component for component in self.components},
            ComparedEngines(engine, eager or self.eager, self.unrounded, self.perturbed, full),
            self.source.family.verification,
            self.workload,
            self.constants,
            self.request.cache_length or CACHE,
            Bars(quantisation=quantisation or {}, integer_graphs=self.integer_graphs),
            self.extent,
            max_batch or {},
        )

    def with_inputs(self, change: Callable[[str, Arrays], Arrays]) -> Context:
        """A context whose artifact is called with other inputs: `change(component, inputs)`."""

        class Changed(FaultyStream):
            def run(self, component: str, inputs: Arrays) -> Arrays:
                return super().run(component, change(component, inputs))

        return self.context(StreamEngine(lambda: Changed(self.eager.stream(), no_fault)))


def with_artifact(context: Context, make: Callable[[], Stream]) -> Context:
    """The context with the streams of `make` as the artifact's."""
    return replace(context, engines=replace(context.engines, artifact=StreamEngine(make)))


def no_fault(stream: Stream, name: str, inputs: Arrays, outputs: Arrays) -> None: ...


def failed(results: Iterable[Result]) -> list[str]:
    """Names of the checks that failed: component.output, or the name of another check."""
    return [
        f"{result.component}.{result.output}" if isinstance(result, Comparison) else result.name
        for result in guarded(results, "stopped")
        if isinstance(result, Comparison | Assertion) and not result.passed
    ]


def measurements(results: Iterable[Result]) -> dict[str, dict[str, float]]:
    return {result.name: result.values for result in results if isinstance(result, Measurement)}
