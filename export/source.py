"""A checkpoint and what is to be made of it: the plan, and the quantised model that the plan gives."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from bundle.errors import ExportError, RecipeError
from export.targets.base import Graph
from model.checkpoint import Checkpoint, is_below, materialize
from model.component import Component
from model.families import family_of, open_family
from model.family import Family
from quantize.linear import pack_integers
from quantize.quantizer import Quantizer
from quantize.recipe import Recipe, Rule, find_recipe

HELD_BYTES = 2e9  # of float32 weights that a reference may hold at once beside the model that is verified
SCALE_BYTES = 2  # bfloat16


@dataclass(frozen=True)
class Plan:
    """What decides an artifact besides the checkpoint and the target. `cache_length` None is the family's own."""

    quant: str = "none"
    quant_for: tuple[tuple[str, str], ...] = ()
    rules: tuple[Rule, ...] = ()
    switches: dict[str, Any] = field(default_factory=dict)
    cache_length: int | None = None

    def recipes(self, family: Family, component_graphs: dict[str, str]) -> dict[str, Recipe]:
        """The recipe of each graph, rules included. Raises RecipeError on an unknown component or a contradiction."""
        chosen: dict[str, str] = {}
        for component, recipe in self.quant_for:
            graph = component_graphs.get(
                component, component if component in component_graphs.values() else None
            )
            if graph is None:
                raise RecipeError(
                    f"--quant-for {component}={recipe}: no such component; there are {', '.join(component_graphs)}"
                )
            if chosen.setdefault(graph, recipe) != recipe:
                raise RecipeError(
                    f"--quant-for {component}={recipe}: it shares its weights with a component that is to be {chosen[graph]}"
                )
        protected = tuple(Rule(path, None, None) for path in family.high_precision)
        return {
            graph: find_recipe(chosen.get(graph, self.quant)).with_rules(self.rules + protected)
            for graph in dict.fromkeys(component_graphs.values())
        }


class Source:
    """A checkpoint, opened and checked; no weight is loaded."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.family = open_family(family_of(folder))
        self.config = self.family.load_config(folder)
        self.checkpoint = Checkpoint(folder)
        self._root = self.family.root(self.config, self.checkpoint)

    def root(self) -> nn.Module:
        """A new root module on the meta device."""
        return copy.deepcopy(self._root)

    def describe(self, plan: Plan, layout: str = "BSHD") -> list[Component]:
        """Components without weights."""
        return self.family.components(self._root, self.config, self.switches(plan), self.rows(plan), layout)

    def switches(self, plan: Plan) -> Any:
        """The family's switches, all of them."""
        return self.family.switches(**plan.switches)

    def rows(self, plan: Plan) -> int:
        """Of the caches of a decoder."""
        return plan.cache_length or self.family.default_cache(self.config)

    def recipes(self, plan: Plan) -> dict[str, Recipe]:
        """The recipe of each graph. Raises RecipeError on what no component or no weight answers to."""
        for rule in plan.rules:
            if not any(fnmatchcase(path, rule.pattern) for path in self.quantizable):
                raise RecipeError(
                    f"--quant-rule {rule.pattern}: matches no weight; paths are as in the checkpoint, like {self.quantizable[-1]}"
                )
        recipes = plan.recipes(
            self.family, {component.name: component.graph for component in self.describe(plan)}
        )
        self._check_groups(recipes)
        return recipes

    def _check_groups(self, recipes: dict[str, Recipe]) -> None:
        """Raises RecipeError that names all weights at once whose inputs no group divides, and what keeps them."""
        odd: dict[str, str] = {}
        for graph, recipe in recipes.items():
            for path, module in self._root.named_modules():
                if (
                    isinstance(module, nn.Linear)
                    and path in self.quantizable
                    and is_below(path, self.family.weights_of_graph[graph])
                ):
                    scheme = recipe.scheme_for(path, False)
                    if scheme and scheme.group and module.in_features % scheme.group:
                        like = "*" + ".".join(path.split(".")[-2:])
                        odd.setdefault(
                            like,
                            f"groups of {scheme.group} do not divide the {module.in_features} inputs of {path}",
                        )
        if odd:
            rules = " ".join(f"--quant-rule '{pattern}=none'" for pattern in odd)
            raise RecipeError(
                f"{next(iter(odd.values()))}; take w8, which has no groups, or keep such weights as floats: {rules}"
            )

    @property
    def is_large(self) -> bool:
        """Whether it is checked by a sample and not against full precision, which memory would not hold beside it."""
        return 4 * sum(parameter.numel() for parameter in self._root.parameters()) > HELD_BYTES

    @cached_property
    def quantizable(self) -> list[str]:
        """Paths of the linears and tables that a recipe may touch."""
        paths = [
            path
            for path, module in self._root.named_modules()
            if isinstance(module, nn.Linear | nn.Embedding)
        ]
        return [path for path in paths if not self.family.is_constant(path)]

    @cached_property
    def voices(self) -> dict[str, Any]:
        return self.family.voices(self.folder, self.config) if self.family.voices else {}


class Model:
    """The modules of a checkpoint with a plan's quantisation. Weights load graph by graph, when a graph is asked for."""

    def __init__(self, source: Source, plan: Plan, layout: str, halves: bool = False):
        """`halves` rounds what stays in floating point to half precision, as some targets hold it."""
        self._source, self._plan, self._recipes, self._layout, self._halves = (
            source,
            plan,
            source.recipes(plan),
            layout,
            halves,
        )
        self._loaded: dict[str, list[Component]] = {}
        self.reports: dict[str, dict[str, float]] = {}
        self.quantized: dict[str, list[str]] = {}

    def components(self, graph: str) -> list[Component]:
        if graph not in self._loaded:
            family = self._source.family
            quantizer, root = Quantizer(self._recipes[graph], family.is_constant), self._source.root()
            materialize(root, self._source.checkpoint, family.weights_of_graph[graph], quantizer)
            self._loaded[graph] = family.components(
                root,
                self._source.config,
                self._source.switches(self._plan),
                self._source.rows(self._plan),
                self._layout,
                only=graph,
            )
            if self._halves:
                _round_to_half(self._loaded[graph])
            self.reports[graph], self.quantized[graph] = quantizer.report(), quantizer.quantized
        return self._loaded[graph]

    def release(self, graph: str) -> None:
        """Lets a graph's weights go; asked for again, they are loaded again."""
        self._loaded.pop(graph, None)

    def pack(self, graph: str) -> None:
        """Once it is lowered: from here on its integers are compared and multiplied only, and take half the memory."""
        for component in self._loaded.get(graph, []):
            pack_integers(component.module)

    def graph(self, name: str) -> Graph:
        """What is lowered as one, with its weights."""
        return Graph(name, tuple(self.components(name)))

    def graphs(self) -> Iterator[Graph]:
        """Graph after graph, each loaded when its turn comes."""
        return map(self.graph, self._recipes)

    def all_components(self) -> list[Component]:
        return [component for name in self._recipes for component in self.components(name)]


def _round_to_half(components: list[Component]) -> None:
    for module in {component.module for component in components}:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                half = tensor.half()
                if not half.isfinite().all():
                    where = components[0].graph
                    raise ExportError(
                        f"{where}: a weight of {float(tensor.abs().max()):.3g} is beyond half precision; --compute-precision float32 holds it"
                    )
                tensor.data = half.float()


class OneGraph:
    """Components of a plan, loaded when called and let go for the next where they would not fit together: the
    full-precision reference of a model too large to be held twice. Calls should come graph by graph, unless `holds_all`."""

    def __init__(self, source: Source, plan: Plan, layout: str):
        self._make = lambda: Model(source, plan, layout)
        self._graph_of = {component.name: component.graph for component in source.describe(plan)}
        self._held: dict[str, dict[str, Component]] = {}
        self.holds_all = not source.is_large

    def __call__(self, name: str) -> Component:
        graph = self._graph_of[name]
        if graph not in self._held:
            if not self.holds_all:
                self._held.clear()
            self._held[graph] = {component.name: component for component in self._make().components(graph)}
        return self._held[graph][name]


@dataclass
class GraphWeights:
    """Of one graph: number of weights; bytes that the recipe holds them in, that a call reads of them (of a table a few rows,
    counted as none), and that the loaded model takes, before and after its integers are packed."""

    count: int = 0
    held: float = 0.0
    read: float = 0.0
    loaded: float = 0.0
    packed: float = 0.0


def graph_weights(
    root: nn.Module, family: Family, graph: str, recipe: Recipe, float_bytes: int
) -> GraphWeights:
    """From shapes alone."""
    prefixes = family.weights_of_graph[graph]
    tables = {
        f"{path}.weight": isinstance(module, nn.Embedding)
        for path, module in root.named_modules()
        if isinstance(module, nn.Linear | nn.Embedding)
    }
    found = GraphWeights()
    for name, parameter in root.named_parameters(remove_duplicate=False):  # a tied weight is in both graphs
        path, count = name.removesuffix(".weight"), int(parameter.numel())
        if not is_below(name, prefixes) or family.is_constant(path):
            continue
        scheme = recipe.scheme_for(path, tables[name]) if name in tables else None
        if scheme is None:
            held, loaded, packed = float(float_bytes * count), float(4 * count), float(4 * count)
        else:
            row = parameter.shape[-1]
            scales = (
                count / row / scheme.channels * 2**scheme.bits
                if scheme.channels
                else count / (scheme.group or row)
            )
            held, loaded = (
                count * scheme.bits / 8 + SCALE_BYTES * scales,
                count * (5 if scheme.channels else 1) + 5 * scales,
            )
            packed = loaded if scheme.channels else count * scheme.bits / 8 + 4 * scales
        found.count += count
        found.held += held
        found.read += 0 if tables.get(name) else held
        found.loaded += loaded
        found.packed += packed
    return found
