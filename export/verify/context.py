"""`Context`: what checks compare in one mode: the engines, their bars and their start states."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np
import torch
from torch import nn

from voxport.bundle.manifest import Bundle
from voxport.bundle.spec import Kind, Signature, StateSpec
from voxport.export.model import Model
from voxport.export.targets.base import Graph, Target
from voxport.export.verify.comparison import FLOAT16_BAR, FLOAT_BAR, Comparison, distance_at
from voxport.export.verify.eager import EagerEngine, perturbed
from voxport.export.verify.modes import MAX_ROWS, WHOLE, Extent, Mode
from voxport.model.family import VerificationPlan
from voxport.model.graph import Component
from voxport.quantize.modules import QuantizedModule, float_activations
from voxport.runtime.engines.base import Arrays, Engine, Stream
from voxport.runtime.families import open_family
from voxport.runtime.families.workload import VerificationWorkload

NOISE_STEP = 997  # values between the starts of two states' noise; a prime, so that no two rows are equal


@dataclass(frozen=True)
class ComparedEngines:
    """Engines of the same components.

    `artifact` runs what was lowered. `eager` has the artifact's integers and activation arithmetic.
    `unrounded` is eager with float activations. `perturbed` is eager under another order of float sums; None
    if calls that meet a tie are not counted. `full` is eager in full precision; None if no
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

    `integer_graphs` have quantised products with integer activations. `by_graph` are bars of the lowering
    error of values of one graph, `lowering` is for values of all graphs.
    """

    lowering: float = FLOAT_BAR
    quantisation: Mapping[str, float] = field(default_factory=dict)
    integer_graphs: frozenset[str] = frozenset()
    by_graph: Mapping[str, float] = field(default_factory=dict)


def _inputs_of_logits(signature: Signature, output: str) -> int | None:
    """The width of the decoder whose values the logits are sums of; None for other outputs."""
    specs = [*signature.inputs, *signature.outputs]
    if not any(spec.name == output and spec.kind is Kind.LOGITS for spec in specs):
        return None
    kinds = (Kind.EMBEDDING, Kind.HIDDEN)
    widths = [spec.shape[-1] for spec in specs if spec.kind in kinds]
    return min((width for width in widths if isinstance(width, int)), default=None)


@dataclass(frozen=True)
class Context:
    """What a check needs, in one mode.

    `plan` names the sequences of calls of the family. `workload` runs the whole model, with `constants`.
    `cache_length` is in rows of the decoder. `max_batch`: how many streams one call of a component serves
    (default: 1).
    """

    components: Mapping[str, Component]
    engines: ComparedEngines
    plan: VerificationPlan
    workload: VerificationWorkload[Any]  # Any: each family has its own constants
    constants: Any
    cache_length: int
    bars: Bars = Bars()
    extent: Extent = WHOLE
    max_batch: Mapping[str, int] = field(default_factory=dict)
    _last_states: dict[tuple[str, int, bool], Arrays] = field(default_factory=dict, init=False)

    def comparison(self, component: str, output: str, check: str) -> Comparison:
        bar = self.bars.by_graph.get(self.components[component].graph, self.bars.lowering)
        inputs = _inputs_of_logits(self.components[component].signature, output)
        return Comparison(component, output, check, self.is_integer(component), bar, inputs=inputs)

    def call_seeds(self, cases: int = 1) -> tuple[int, ...]:
        """Seeds of calls of one size, for every case of a component: more of them if a share of the calls
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


def open_context(
    bundle: Bundle, model: Model, target: Target, mode: Mode, graph: str | None = None
) -> Context:
    """The engines to compare in one mode, with their bars: for all graphs, or for one."""
    resolved, job = model.resolved, bundle.job
    graphs = [model.graph(name) for name in ([graph] if graph else resolved.recipes)]
    names = {entry.name for entry in bundle.components}
    bars = _bars(graphs, target, mode.precision)
    if mode.float_activations:
        bars = replace(bars, integer_graphs=frozenset())
    return Context(
        components={component.name: component for part in graphs for component in part.components},
        engines=_engines(bundle, model, target, mode),
        plan=resolved.source.family.verification.restricted_to(names),
        workload=open_family(job.family).verification,
        constants=resolved.constants,
        cache_length=job.cache_length,
        bars=bars,
        extent=mode.extent,
        max_batch={entry.name: entry.max_batch for entry in bundle.components},
    )


def _engines(bundle: Bundle, model: Model, target: Target, mode: Mode) -> ComparedEngines:
    extent = mode.extent
    names = {entry.name for entry in bundle.components}
    units = mode.options.engine.compute_units if mode.precision is None else None
    options = replace(mode.options.engine, compute_precision=mode.precision, compute_units=units)
    components = tuple(component for component in model.components if component.name in names)
    unrounded = EagerEngine(components, model.module, target.layout, float_activations)
    artifact = target.open_artifacts(bundle, options, mode.float_activations)
    if mode.float_activations:
        return ComparedEngines(artifact, unrounded, unrounded)
    kernel = target.linear_kernel
    is_float16 = target.runs_in_float16(mode.precision)
    other_sums = perturbed(kernel, torch.float16 if is_float16 else torch.float32)
    is_rounded = any(model.layer_errors.values()) or bundle.job.compute_precision == "float16"
    holds_full = extent.frames > 0 or not extent.is_sample
    reference = Model(model.resolved.in_full_precision(), target.layout)
    return ComparedEngines(
        artifact=artifact,
        eager=EagerEngine(components, model.module, target.layout, kernel),
        unrounded=unrounded,
        perturbed=EagerEngine(components, model.module, target.layout, other_sums)
        if mode.counts_ties
        else None,
        full=EagerEngine(components, reference.module, target.layout) if is_rounded and holds_full else None,
    )


def _bars(graphs: Sequence[Graph], target: Target, precision: str | None) -> Bars:
    """The bars of quantisation follow from the coarsest scheme of each graph."""
    quantisation, integer_graphs, by_graph = dict[str, float](), set[str](), dict[str, float]()
    for graph in graphs:
        by_graph[graph.name] = FLOAT_BAR
        if target.runs_in_float16(precision, graph.exceeds_float16):
            sums = _float16_sums(graph.module) if target.sums_in_float16(precision) else 0.0
            by_graph[graph.name] = FLOAT16_BAR + sums
        parts = [part for part in graph.module.modules() if isinstance(part, QuantizedModule)]
        if parts:
            quantisation[graph.name] = distance_at(min(part.scheme.min_correlation for part in parts))
        products = (part.scheme for part in parts if not part.is_table)
        if any(scheme.integer_activations(target.has_integer_kernels) for scheme in products):
            integer_graphs.add(graph.name)
    return Bars(max(by_graph.values()), quantisation, frozenset(integer_graphs), by_graph)


def _float16_sums(module: nn.Module) -> float:
    """The error of a graph whose products are summed in float16, in the order of their terms.

    After k of K terms, a sum has a variance of k / K of the result's. Its rounding error is evenly spread and
    at most u = 2^-11 of it, so its variance is at most u^2 / 3 of the sum's. All K errors have together
    u^2 / 3 * sum(k / K) = u^2 K / 6. A graph is taken for one chain of products, so their variances add up.
    Products side by side, and blocks that add to a sum, have less, which is a reserve.
    """
    terms = 0
    for part in module.modules():
        weight = getattr(part, "weight", None)
        is_table = isinstance(part, nn.Embedding) or getattr(part, "is_table", False)
        if weight is not None and weight.dim() > 1 and not is_table:
            terms += getattr(part, "in_features", weight[0].numel())  # packed weights have fewer columns
    return 2**-11 * sqrt(terms / 6)


def add_outputs(
    compared: Iterable[Comparison], results: Sequence[Arrays], full: Mapping[str, np.ndarray] | None = None
) -> None:
    """Adds one call: the outputs of the engines in the order of `Context.compared`, and of full precision."""
    for comparison in compared:
        name = comparison.output
        comparison.add(*(result[name] for result in results), full=(full or {}).get(name))


def add_states(compared: Mapping[str, Comparison], states: Sequence[Arrays]) -> None:
    for name, comparison in compared.items():
        comparison.add(*(found[name] for found in states))


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
