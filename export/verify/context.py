"""`Context`: the engines that checks compare, their bars and start states, and how much is checked."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from voxport.bundle.spec import StateSpec
from voxport.export.verify.comparison import FLOAT_BAR, Comparison
from voxport.model.component import Component
from voxport.model.family import VerificationPlan
from voxport.runtime.engines.base import Arrays, Engine, Stream

MAX_ROWS = 24  # of the longest call
NOISE_STEP = 997  # values between the starts of two states' noise; a prime, so that no two rows are equal


LONG_CODES = "long codes"  # name of the check over hundreds of frames


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
    left_out: tuple[str, ...] = ()  # checks that do not run
    is_sample: bool = False  # of a model whose eager steps take seconds

    def __str__(self) -> str:
        counts = ((len(self.seeds), "seed"), (self.steps, "decode step"))
        seeds, steps = (f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts)
        done = (
            f"{seeds}, up to {max(self.sizes)} rows, {steps}, {self.chunked} frames in chunks, "
            f"runs of {self.run_steps}"
        )
        return ", ".join([done, *(f"no {name}" for name in self.left_out)])


WHOLE = Extent()
# For billions of weights: a step of the reference takes seconds.
SAMPLE = Extent(
    seeds=(1,),
    sizes=(2, MAX_ROWS),
    steps=4,
    chunked=8,
    run_steps=3,
    replay_steps=1,
    left_out=(LONG_CODES,),
    is_sample=True,
)
# As well as that, a call of the artifact takes seconds.
SMOKE = Extent(
    seeds=(1,),
    sizes=(MAX_ROWS,),
    steps=0,
    chunked=4,
    run_steps=1,
    past_window=1,
    left_out=("replay", "free run", LONG_CODES),
    is_sample=True,
)


@dataclass(frozen=True)
class ComparedEngines:
    """Engines of the same components.

    `artifact` runs what was lowered. `eager` has the artifact's integers and activation arithmetic.
    `unrounded` is eager with float activations. `perturbed` is eager under another order of float sums; None
    where too few calls are compared for a share of them. `full` is eager in full precision; None where no
    weight is rounded or memory does not hold it.
    """

    artifact: Engine
    eager: Engine
    unrounded: Engine
    perturbed: Engine | None = None
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
    _last_states: dict[tuple[str, int, bool], Arrays] = field(default_factory=dict, init=False)

    def comparison(self, component: str, output: str, check: str) -> Comparison:
        return Comparison(component, output, check, self.is_integer(component), self.bars.lowering)

    def call_seeds(self, cases: int = 1) -> tuple[int, ...]:
        """Seeds of calls of one size, for every case of a component: more of them where a share of the calls
        is compared.
        """
        extent = self.extent
        count = len(extent.seeds) * len(extent.sizes)
        seeds = tuple(range(count)) if self.engines.perturbed else extent.seeds
        return seeds if len(seeds) >= cases else tuple(range(seeds[0], seeds[0] + cases))

    def state_comparisons(self, component: str, check: str) -> dict[str, Comparison]:
        """A comparison for each state, because the error of one is lost among many."""
        states = self.components[component].signature.states
        return {
            state.name: self.comparison(component, "states", f"{check}: {state.name}") for state in states
        }

    def streams(self, component: str) -> list[Stream]:
        """A new stream of each engine of `compared`."""
        return [engine.stream() for engine in self.compared(component)]

    def compared(self, component: str) -> tuple[Engine, ...]:
        """The artifact, eager and, for integer activations, those that measure how far rounding goes."""
        engines = (self.engines.artifact, self.engines.eager)
        if not self.is_integer(component):
            return engines
        others = (self.engines.unrounded, self.engines.perturbed)
        return (*engines, *(engine for engine in others if engine))

    def is_integer(self, component: str) -> bool:
        """Whether the component's activations are integers, so that ties may round differently."""
        return self.components[component].graph in self.bars.integer_graphs

    def stateful_graphs(self) -> list[list[Component]]:
        """The components with states, by graph. The last one of a graph takes the smallest steps."""
        graphs: dict[str, list[Component]] = {}
        for component in self.components.values():
            if component.signature.states:
                graphs.setdefault(component.graph, []).append(component)
        return list(graphs.values())

    def start_states(self, graph: str, seed: int, is_warm: bool) -> Arrays:
        """States of eager: empty, or warm after `MAX_ROWS` rows of the first component of `graph`.

        Keeps the last states, because the components of one graph start from the same ones.
        """
        key = (graph, seed, is_warm)
        if key not in self._last_states:
            stream = self.engines.eager.stream()
            if is_warm:
                first = next(other for other in self.components.values() if other.graph == graph)
                stream.run(first.name, largest_example(first, seed + 100))
            self._last_states.clear()
            self._last_states[key] = stream.save()
        return self._last_states[key]

    def start_rows(self, graph: str, seed: int, count: int) -> Arrays:
        """The first `count` rows of every cache of `start_states`; warm if `count` is not 0."""
        stream = self.engines.eager.stream()
        stream.load(self.start_states(graph, seed, count > 0))
        return stream.save(positions=count)


def at_position(inputs: Arrays, position: int) -> Arrays:
    """The inputs with their position replaced, of a component that takes one."""
    return {**inputs, "position": np.array([position])} if "position" in inputs else inputs


def largest_example(component: Component, seed: int, limit: int = MAX_ROWS) -> Arrays:
    """Example inputs with every dynamic dimension at `limit` or at its upper bound."""
    return component.example(
        seed, **{dim: min(limit, high) for dim, (_, high) in component.signature.dims.items()}
    )


def full_states(eager: Engine, names: Collection[str]) -> Arrays:
    """A snapshot with noise in the named states and zeros in the others.

    All noise is cut from one array, because full caches of the published size take half a gigabyte.
    """
    states = eager.stream().save()
    sizes = {name: states[name].size for name in sorted(names)}
    noise = 0.5 * np.random.default_rng(3).standard_normal(
        max(sizes.values(), default=0) + NOISE_STEP * len(sizes), dtype=np.float32
    )
    for index, (name, size) in enumerate(sizes.items()):
        states[name] = noise[NOISE_STEP * index :][:size].reshape(states[name].shape)
    return states


def has_window(component: Component) -> bool:
    """Whether its caches hold the last rows of an unbounded stream."""
    return any(state.window for state in component.signature.states)


def equal_rows(first: Arrays, second: Arrays, states: Iterable[StateSpec], rows: slice) -> bool:
    """Whether these rows of all caches are equal, to the bit."""
    axes = {state.name: state.cache.row_axis for state in states if state.cache}
    places = [(name, (slice(None),) * axis + (rows,)) for name, axis in axes.items()]
    return all(np.array_equal(first[name][place], second[name][place]) for name, place in places)
