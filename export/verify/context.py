"""What the checks of a bundle look at: streams of the same components, and how much of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from bundle.cache import LAYOUTS
from export.verify.comparison import FLOAT_BAR, Comparison
from model.component import Component
from runtime.engines.base import Stream
from runtime.engines.states import Arrays

NewStream = Callable[[], Stream]
LONG = 24  # rows of the longest call


@dataclass(frozen=True)
class Extent:
    """How much is checked. `sizes` are rows of a dynamic dimension; short, so that a rounding tie in one call says nothing of another."""

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    sizes: tuple[int, ...] = (1, 2, 5, LONG)
    steps: int = 1000
    streamed: int = 125  # frames in pieces and in one call
    spoken: int = 40  # frames of a whole run
    replayed: int = 6  # steps of each of two runs that are called again
    beyond: int = 2  # steps beyond the last row of caches that roll
    freely: bool = True  # whether a run goes on from its own codes as well

    def __str__(self) -> str:
        seeds, steps = (
            f"{count} {what}{'' if count == 1 else 's'}"
            for count, what in ((len(self.seeds), "seed"), (self.steps, "decode step"))
        )
        sizes = f"{seeds}, up to {max(self.sizes)} rows, {steps}, {self.streamed} frames in pieces, {self.spoken} of a whole run"
        left_out = [
            what for what, done in (("no replay", self.replayed), ("no free run", self.freely)) if not done
        ]
        return ", ".join([sizes, *left_out])


WHOLE = Extent()
# Of a model of billions of weights, whose reference takes seconds for each step in eager torch.
SAMPLE = Extent(seeds=(1,), sizes=(2, LONG), steps=4, streamed=8, spoken=3, replayed=1)
# And where each call of the artifact takes seconds as well.
SKETCH = Extent(seeds=(1,), sizes=(LONG,), steps=0, streamed=4, spoken=1, replayed=0, beyond=1, freely=False)


class Context:
    """What the checks compare, and which graphs multiply with integer activations."""

    def __init__(
        self,
        components: Sequence[Component],
        artifact: NewStream,
        eager: NewStream,
        reordered: NewStream,
        full: NewStream | None,
        layout: str,
        chunked: tuple[str, str],
        integer_graphs: Collection[str] = (),
        bars: dict[str, float] | None = None,
        float_bar: float = FLOAT_BAR,
        extent: Extent = WHOLE,
        batched: Callable[[int], Stream] | None = None,
        max_batch: dict[str, int] | None = None,
    ):
        """`integer_graphs` have quantised products with integer activations; `bars` are for the quantisation error, by graph.
        `float_bar` is for the lowering error where no tie decides. `batched(n)` gives a stream of the artifact with n slots, `max_batch` how many a component serves.
        `chunked` are the component that takes a whole and the one that takes it in pieces.
        """
        self.float_bar, self.extent, self.chunked = float_bar, extent, chunked
        self.components = {component.name: component for component in components}
        self.artifact, self.eager, self.reordered, self.full, self.batched = (
            artifact,
            eager,
            reordered,
            full,
            batched,
        )
        self.cache_axis, self._integer, self._bars = LAYOUTS[layout].row_axis, integer_graphs, bars or {}
        self.max_batch = max_batch or {}
        self.last_states: tuple[tuple[str, int, bool], Arrays] | None = None

    def comparison(self, component: str, output: str, check: str) -> Comparison:
        return Comparison(component, output, check, self.is_integer(component), self.float_bar)

    def streams(self, component: str) -> list[Stream]:
        """The artifact's and eager's, and where ties may fall differently, eager's under another order of sums."""
        return [make() for make in self.makers(component)]

    def makers(self, component: str) -> tuple[NewStream, ...]:
        return (self.artifact, self.eager, self.reordered)[: 3 if self.is_integer(component) else 2]

    def is_integer(self, component: str) -> bool:
        return self.components[component].graph in self._integer

    def quantisation_bar(self, component: str) -> float | None:
        return self._bars.get(self.components[component].graph)

    def rolls(self, component: str) -> bool:
        """Whether its caches hold the last rows of a stream without end."""
        return any(state.window for state in self.components[component].signature.states)

    def beyond(self, cache: np.ndarray, rows: int) -> np.ndarray:
        """A cache without its first rows."""
        return np.split(cache, [rows], axis=self.cache_axis)[1]
