"""Resolves a request and a checkpoint into an `ExportJob`, which decides all artifacts of a bundle."""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatchcase
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import nn

from bundle.cache import LayoutName
from bundle.errors import RecipeError, UsageError
from bundle.manifest import ComponentEntry, ExportJob, ExportRequest, RecipeEntry
from bundle.manifest import Source as SourceEntry
from bundle.record import first_fault
from export.source import Source
from export.targets import check_recipes
from export.targets.base import Target
from export.weights import graph_weights
from model.checkpoint import is_below
from model.component import Component
from quantize.recipe import Recipe, Rule, find_recipe, parse_rule

MIN_CACHE_LENGTH = 64  # rows that verification writes: twice its longest call, and one teacher-forced run
PACKAGES = ("bundle", "export", "model", "quantize", "runtime")


def resolve(source: Source, request: ExportRequest, target: Target, name: str, licence: str) -> ExportJob:
    """The job that `request` describes for `source` and `target`; `name` is the checkpoint's.

    Raises RecipeError or UsageError that names the option that cannot be followed.
    """
    options = resolve_options(source, request)
    cache_length = resolve_cache_length(source, request)
    recipes = resolve_recipes(source, request)
    check_recipes(target, recipes.values())
    target.check_installed()
    components = describe(source, request, target.layout)
    return ExportJob(
        family=source.family.name,
        source=SourceEntry(name=name, files=source.files),
        request=request,
        target=target.name,
        compute_precision=target.compute_precision,
        options=options.model_dump(),
        constants=source.family.constants(source.config, options),
        recipes={graph: RecipeEntry.model_validate(recipe.to_dict()) for graph, recipe in recipes.items()},
        cache_length=cache_length,
        components=tuple(
            _entry(source, target, component, recipes[component.graph]) for component in components
        ),
        licence=licence,
        tools=tool_versions(target.packages),
    )


def eager_job(source: Source, request: ExportRequest) -> ExportJob:
    """The job of the model in eager PyTorch: options and constants for the runtime's families, no artifacts.

    Raises UsageError or RecipeError as `resolve` does.
    """
    options = resolve_options(source, request)
    return ExportJob(
        family=source.family.name,
        source=SourceEntry(name=source.folder.resolve().name, files={}),
        request=request,
        target="eager",
        compute_precision="float32",
        options=options.model_dump(),
        constants=source.family.constants(source.config, options),
        recipes={},
        cache_length=resolve_cache_length(source, request),
        components=(),
        licence=source.family.licence,
        tools={},
    )


def resolve_options(source: Source, request: ExportRequest) -> Any:
    """The family's options with their defaults, as a pydantic model of the family. Raises UsageError."""
    try:
        return source.family.options(**request.options)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        raise UsageError(first_fault(error), field=name) from None


def resolve_cache_length(source: Source, request: ExportRequest) -> int:
    """Rows of the decoder's cache. Raises RecipeError outside the bounds of the family."""
    longest = source.family.longest_cache(source.config)
    if request.cache_length is None:
        return source.family.default_cache(source.config)
    length = request.cache_length
    if not MIN_CACHE_LENGTH <= length <= longest:
        expected = f"expected {MIN_CACHE_LENGTH} to {longest} rows"
        raise RecipeError(f"cache_length {length}: {expected}", field="cache_length")
    return length


def resolve_recipes(source: Source, request: ExportRequest) -> dict[str, Recipe]:
    """The recipe of each graph.

    Raises RecipeError if a rule matches no weight or an override matches no component.
    """
    graphs = {component.name: component.graph for component in describe(source, request)}
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


def describe(source: Source, request: ExportRequest, layout: LayoutName = "BSHD") -> tuple[Component, ...]:
    """The components of the checkpoint's family under this request."""
    options, cache_length = resolve_options(source, request), resolve_cache_length(source, request)
    return source.family.components(source.config, options, cache_length, layout)


def _entry(source: Source, target: Target, component: Component, recipe: Recipe) -> ComponentEntry:
    weights = graph_weights(source.root(), source.family, component.graph, recipe, target.float_bytes)
    where = target.entry_point(component)
    return ComponentEntry(
        name=component.name,
        graph=component.graph,
        purpose=component.purpose,
        signature=target.signature(component),
        file=where.file,
        entry_point=where.name,
        max_batch=target.max_batch if component.batched else 1,
        state_rows_per_call=where.state_rows_per_call,
        recipe=recipe.name,
        bits_per_weight=round(8 * weights.stored / weights.count, 2),
        weight_bytes=int(weights.read),
    )


def graph_key(job: ExportJob, graph: str) -> str:
    """Hash of everything that decides the artifact of one graph: what a resumed export may reuse."""
    components = tuple(entry for entry in job.components if entry.graph == graph)
    part = job.model_copy(update={"recipes": {graph: job.recipes[graph]}, "components": components})
    content = part.model_dump(mode="json", exclude={"request", "licence"})
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def tool_versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Versions that decide the bytes of an artifact; that of voxport is a hash of its code."""
    versions = {package: version(package) for package in sorted({*packages, "torch", "torchao"})}
    return versions | {"voxport": _code_hash()}


@cache
def _code_hash() -> str:
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def first_difference(found: Any, expected: Any, path: str = "") -> str | None:
    """Path of the first value in which two JSON values differ; None where they are equal."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted(found.keys() | expected.keys()):
            below = first_difference(found.get(key), expected.get(key), f"{path}.{key}" if path else key)
            if below:
                return below
        return None
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, pair in enumerate(zip(found, expected, strict=True)):
            if below := first_difference(*pair, f"{path}.{index}"):
                return below
        return None
    return None if found == expected else path
