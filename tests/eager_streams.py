"""Eager in an artifact's place, with faults put into it: for the tests of the checks."""

from collections.abc import Callable, Iterable
from typing import Any

from bundle.manifest import ExportRequest
from export.job import eager_job
from export.model import Model
from export.source import Source
from export.verify.checks import guarded
from export.verify.comparison import Comparison, Fact
from export.verify.context import Context
from export.verify.eager import EagerEngine, reordered
from quantize.linear import int8_per_block
from runtime.engines.base import Stream
from runtime.engines.states import Arrays
from runtime.families import open_family

CACHE = 160
Fault = Callable[[Stream, str, Arrays, Arrays], None]


class FaultyStream(Stream):
    """A stream whose outputs and states a fault may change after every call."""

    def __init__(self, inner: Stream, fault: Fault):
        super().__init__(inner.signatures)
        self.inner, self.fault, self.calls = inner, fault, 0

    def _run(self, component: str, inputs: Arrays) -> Arrays:
        outputs = {name: array.copy() for name, array in self.inner.run(component, inputs).items()}
        self.calls += 1
        self.fault(self, component, inputs, outputs)
        return outputs

    def change_states(self, change: Callable[[Arrays], None]) -> None:
        states = self.inner.snapshot()
        change(states)
        self.inner.restore(states)

    def reset(self) -> None:
        self.inner.reset()

    def snapshot(self) -> Arrays:
        return self.inner.snapshot()

    def restore(self, states: Arrays) -> None:
        self.inner.restore(states)


class Engines:
    """One model, and contexts of it with a fault in the artifact's place."""

    def __init__(self, checkpoint, quant: str, cache: int = CACHE, layout: str = "BSHD", **options):
        self.source, self.layout = Source(checkpoint), layout
        self.request = ExportRequest(quant=quant, options=options, cache_length=cache)
        model = Model(self.source, self.request, layout)
        self.model, self.components = model, model.components
        self.eager = EagerEngine(self.components, model.module, layout, int8_per_block)
        self.reordered = EagerEngine(self.components, model.module, layout, reordered(int8_per_block))
        self.integer = [
            graph for graph, paths in model.quantized.items() if paths and not graph.startswith("embed")
        ]
        self.family = open_family(self.source.family.name)
        self.constants: Any = self.family.parse_constants(eager_job(self.source, self.request))

    def context(
        self,
        fault: Fault,
        eager_too: bool = False,
        full: Callable[[], Stream] | None = None,
        bars: dict | None = None,
    ) -> Context:
        def faulty() -> Stream:
            return FaultyStream(self.eager.stream(), fault)

        eager = faulty if eager_too else self.eager.stream
        chunked = self.source.family.chunked
        return Context(
            self.components,
            faulty,
            eager,
            self.reordered.stream,
            full,
            self.layout,
            chunked,
            self.integer,
            bars,
        )


def no_fault(stream, name, inputs, outputs) -> None: ...


def failed(results: Iterable[Comparison | Fact]) -> list[str]:
    """What did not pass: component.output or the fact's name."""
    return [
        f"{r.component}.{r.output}" if isinstance(r, Comparison) else r.check
        for r in guarded(results, "stopped")
        if not r.passed
    ]
