"""`Context`: the engines that the checks compare, the bars they apply, and how much they run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from export.verify.comparison import FLOAT_BAR, Comparison
from export.verify.start_states import MAX_ROWS, StartStates
from model.component import Component
from model.family import VerificationPlan
from runtime.engines.base import Engine, Stream

NewStream = Callable[[], Stream]


@dataclass(frozen=True)
class Extent:
    """How much is checked.

    `sizes` are those of a dynamic dimension; they are short, because a tie in one call of many rows affects
    all of them.
    """

    seeds: tuple[int, ...] = (0, 1, 2, 3, 4, 5)
    sizes: tuple[int, ...] = (1, 2, 5, MAX_ROWS)
    steps: int = 1000  # at most, of the long run
    chunked: int = 125  # frames of the run in chunks
    run_steps: int = 40  # of a teacher-forced run and of a free run
    replay_steps: int = 6  # of each of the two runs that are repeated
    past_window: int = 2  # steps past the last row of a sliding-window cache
    free_run: bool = True

    def __str__(self) -> str:
        counts = ((len(self.seeds), "seed"), (self.steps, "decode step"))
        seeds, steps = (f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
        done = (
            f"{seeds}, up to {max(self.sizes)} rows, {steps}, {self.chunked} frames in chunks, "
            f"runs of {self.run_steps}"
        )
        missing = (("no replay", not self.replay_steps), ("no free run", not self.free_run))
        return ", ".join([done, *(text for text, is_missing in missing if is_missing)])


WHOLE = Extent()
# For billions of weights: a step of the reference takes seconds.
SAMPLE = Extent(seeds=(1,), sizes=(2, MAX_ROWS), steps=4, chunked=8, run_steps=3, replay_steps=1)
# As well as that, a call of the artifact takes seconds.
SMOKE = Extent(
    seeds=(1,),
    sizes=(MAX_ROWS,),
    steps=0,
    chunked=4,
    run_steps=1,
    replay_steps=0,
    past_window=1,
    free_run=False,
)


@dataclass(frozen=True)
class ComparedEngines:
    """Engines of the same components.

    `artifact` runs what was lowered. `eager` has the artifact's integers and activation arithmetic.
    `perturbed` is eager under another order of float sums. `full` is eager in full precision; None where no
    weight is rounded or memory does not hold it.
    """

    artifact: Engine
    eager: Engine
    perturbed: Engine
    full: Engine | None = None


@dataclass(frozen=True)
class Bars:
    """Bars of the lowering error, for results that no tie affects, and of the quantisation error by graph.

    `integer_graphs` have quantised products with integer activations.
    """

    lowering: float = FLOAT_BAR
    quantisation: Mapping[str, float] = field(default_factory=dict)
    integer_graphs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Context:
    """What a check needs. `max_batch`: how many streams one call of a component serves (default: 1)."""

    components: Mapping[str, Component]
    engines: ComparedEngines
    plan: VerificationPlan
    bars: Bars = Bars()
    extent: Extent = WHOLE
    max_batch: Mapping[str, int] = field(default_factory=dict)
    start_states: StartStates = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "start_states", StartStates(self.components, self.engines.eager))

    def comparison(self, component: str, output: str, check: str) -> Comparison:
        return Comparison(component, output, check, self.is_integer(component), self.bars.lowering)

    def streams(self, component: str) -> list[Stream]:
        """New streams: the artifact's, eager's and, for integer activations, perturbed eager's."""
        return [new_stream() for new_stream in self.stream_factories(component)]

    def stream_factories(self, component: str) -> tuple[NewStream, ...]:
        engines = (self.engines.artifact, self.engines.eager, self.engines.perturbed)
        return tuple(engine.stream for engine in engines[: 3 if self.is_integer(component) else 2])

    def is_integer(self, component: str) -> bool:
        """Whether the component's activations are integers, so that ties may round differently."""
        return self.components[component].graph in self.bars.integer_graphs

    def quantisation_bar(self, component: str) -> float | None:
        return self.bars.quantisation.get(self.components[component].graph)

    def stateful_graphs(self) -> list[list[Component]]:
        """The components with states, by graph. The last one of a graph takes the smallest steps."""
        graphs: dict[str, list[Component]] = {}
        for component in self.components.values():
            if component.signature.states:
                graphs.setdefault(component.graph, []).append(component)
        return list(graphs.values())


def has_window(component: Component) -> bool:
    """Whether its caches hold the last rows of an unbounded stream."""
    return any(state.window for state in component.signature.states)


def has_cache(component: Component) -> bool:
    return any(state.cache for state in component.signature.states)
