"""Resolves a request against a checkpoint: once, at the edge. What comes after reads the result."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ValidationError
from torch import nn

from bundle.cache import LayoutName
from bundle.errors import RecipeError, UsageError
from bundle.manifest import ExportRequest
from bundle.record import first_fault
from export.source import Source
from model.checkpoint import is_below
from model.component import Component
from quantize.recipe import Recipe, Rule, find_recipe, parse_rule

MIN_CACHE_LENGTH = 64  # rows that verification writes: twice its longest call, and one teacher-forced run


@dataclass(frozen=True)
class Resolved:
    """A checkpoint with every option of an export decided, whatever the target.

    `request` is what was asked for. `options` are those of the family, with defaults.
    `cache_length` is in rows of the decoder's cache. `recipes` are by graph.
    """

    source: Source
    request: ExportRequest
    options: BaseModel
    cache_length: int
    recipes: dict[str, Recipe]

    def components(self, layout: LayoutName = "BSHD") -> tuple[Component, ...]:
        """The components of the family, with caches in `layout`."""
        return self.source.family.components(self.source.config, self.options, self.cache_length, layout)

    @cached_property
    def constants(self) -> dict[str, Any]:  # Any: JSON values, which the family defines
        """What a runner needs besides names and shapes."""
        return self.source.family.constants(self.source.config, self.options)

    @cached_property
    def graph_of(self) -> dict[str, str]:
        """The graph of each component."""
        return {component.name: component.graph for component in self.components()}

    def in_full_precision(self) -> "Resolved":
        """The same without quantisation."""
        return replace(self, recipes=dict.fromkeys(self.recipes, find_recipe("none")))


def resolve(source: Source, request: ExportRequest) -> Resolved:
    """Raises RecipeError or UsageError that names the option that cannot be followed."""
    options, cache_length = _resolve_options(source, request), _resolve_cache_length(source, request)
    resolved = Resolved(source, request, options, cache_length, recipes={})
    return replace(resolved, recipes=_resolve_recipes(source, request, resolved.graph_of))


def _resolve_options(source: Source, request: ExportRequest) -> Any:
    """The family's options with their defaults, as a pydantic model of the family. Raises UsageError."""
    try:
        return source.family.options(**request.options)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise UsageError(first_fault(error), field=name) from None


def _resolve_cache_length(source: Source, request: ExportRequest) -> int:
    """Rows of the decoder's cache. Raises RecipeError outside the bounds of the family."""
    longest = source.family.longest_cache(source.config)
    if request.cache_length is None:
        return source.family.default_cache(source.config)
    length = request.cache_length
    if not MIN_CACHE_LENGTH <= length <= longest:
        expected = f"expected {MIN_CACHE_LENGTH} to {longest} rows"
        raise RecipeError(f"cache_length {length}: {expected}", field="cache_length")
    return length


def _resolve_recipes(source: Source, request: ExportRequest, graphs: dict[str, str]) -> dict[str, Recipe]:
    """The recipe of each graph; `graphs` maps components to graphs.

    Raises RecipeError where a rule or an override matches no weight or no component.
    """
    rules = tuple(parse_rule(text) for text in request.rules)
    for rule in rules:
        if not any(fnmatchcase(path, rule.pattern) for path in source.quantizable):
            example = list(source.quantizable)[-1]
            raise RecipeError(
                f"rules {rule.pattern}: matches no weight; paths are as in the checkpoint, like {example}",
                field="rules",
            )
    chosen = _overrides(request, graphs)
    protected = tuple(Rule(path, None, None) for path in source.family.high_precision)
    recipes = {
        graph: find_recipe(chosen.get(graph, request.quant)).with_rules(rules + protected)
        for graph in dict.fromkeys(graphs.values())
    }
    _check_shapes(source, recipes)
    return recipes


def _overrides(request: ExportRequest, graphs: dict[str, str]) -> dict[str, str]:
    """Names of recipes that `quant_for` gives to graphs; `graphs` maps components to graphs."""
    chosen: dict[str, str] = {}
    for component, recipe in request.quant_for:
        graph = graphs.get(component, component if component in graphs.values() else None)
        if graph is None:
            raise RecipeError(
                f"quant_for {component}={recipe}: no such component; there are {', '.join(graphs)}",
                field="quant_for",
            )
        if chosen.setdefault(graph, recipe) != recipe:
            raise RecipeError(
                f"quant_for {component}={recipe}: shares its weights with a component of recipe "
                f"{chosen[graph]}",
                field="quant_for",
            )
    return chosen


def _check_shapes(source: Source, recipes: dict[str, Recipe]) -> None:
    """Raises one RecipeError with the rules for all weights whose shape does not fit their scheme."""
    misfits: dict[str, str] = {}
    for graph, recipe in recipes.items():
        for path, module in source.quantizable.items():
            if not is_below(path, source.family.weights_of_graph[graph]):
                continue
            is_table = isinstance(module, nn.Embedding)
            scheme = recipe.scheme_for(path, is_table)
            if scheme and (reason := scheme.misfit(module.get_parameter("weight").shape, is_table)):
                misfits.setdefault("*" + ".".join(path.split(".")[-2:]), f"{reason} of {path}")
    if misfits:
        rules = ", ".join(f"'{pattern}=none'" for pattern in misfits)
        first = next(iter(misfits.values()))
        remedy = f"use w8, which takes every shape, or keep such weights as floats with rules: {rules}"
        raise RecipeError(f"{first}; {remedy}")
