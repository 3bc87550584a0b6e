"""Eager in an artifact's place, with faults put into it: for the tests of the checks."""

from collections.abc import Callable, Iterable

from export.checks import Context, guarded
from export.compare import Comparison, Fact
from export.eager import EagerEngine, reordered
from export.source import Model, Plan, Source
from quantize.linear import int8_per_block
from runtime.engines.base import Arrays, Stream
from runtime.voxtral_tts import Constants, parse_constants

CACHE = 160
Fault = Callable[[Stream, str, Arrays, Arrays], None]


class FaultyStream(Stream):
    """A stream whose outputs and states a fault may change after every call."""

    def __init__(self, inner: Stream, fault: Fault):
        super().__init__(tuple(inner.components.values()), inner.cache_length)
        self.inner, self.fault, self.calls, self.row_axis = inner, fault, 0, inner.row_axis

    def _run(self, entry, inputs: Arrays) -> Arrays:
        outputs = {name: array.copy() for name, array in self.inner.run(entry.name, inputs).items()}
        self.calls += 1
        self.fault(self, entry.name, inputs, outputs)
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

    def __init__(self, checkpoint, quant: str):
        self.source, self.plan = Source(checkpoint), Plan(quant, cache_length=CACHE)
        model = Model(self.source, self.plan, "BSHD")
        self.components = model.all_components()
        self.eager = EagerEngine(self.components, CACHE, "BSHD", int8_per_block)
        self.reordered = EagerEngine(self.components, CACHE, "BSHD", reordered(int8_per_block))
        self.integer = [graph for graph, paths in model.quantized.items() if paths and graph not in ("embed_text", "embed_codes")]
        self.constants: Constants = parse_constants(self.source.family.constants(self.source.config), {"first_frame": "audio_token"})

    def context(self, fault: Fault, eager_too: bool = False, full: Callable[[], Stream] | None = None, bars: dict | None = None) -> Context:
        def faulty() -> Stream:
            return FaultyStream(self.eager.stream(), fault)

        eager = faulty if eager_too else self.eager.stream
        return Context(self.components, faulty, eager, self.reordered.stream, full, "BSHD", self.integer, bars)


def no_fault(stream, name, inputs, outputs) -> None: ...


def failed(results: Iterable[Comparison | Fact]) -> list[str]:
    """What did not pass: component.output or the fact's name."""
    return [f"{r.component}.{r.output}" if isinstance(r, Comparison) else r.check for r in guarded(results, "stopped") if not r.passed]
