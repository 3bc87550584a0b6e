"""Opens a checkpoint and resolves a request against it: once, at the edge. Later code reads the result."""

import copy
import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from pydantic import ValidationError
from torch import nn

from voxport.bundle.errors import CheckpointError, RecipeError, UsageError
from voxport.bundle.manifest import ExportRequest, FamilyConstants, FileEntry, Record, file_entry, first_fault
from voxport.bundle.names import did_you_mean
from voxport.bundle.spec import LayoutName
from voxport.model.checkpoint import is_below
from voxport.model.foreign import ADAPTER_CONFIG, ADAPTER_WEIGHTS, foreign_format_named
from voxport.model.graph import Component, GraphSpec, ModelSpec
from voxport.model.inspection import check_parts, open_family_of
from voxport.quantize.recipe import Recipe, Rule, find_recipe, parse_rule, with_min_bits

if TYPE_CHECKING:
    from voxport.quantize.calibration import Calibration

MAX_REFERENCE_BYTES = 2e9  # float32 weights of a reference, beside the model that is verified
log = logging.getLogger(__name__)
ADAPTER = "adapter"
MIN_CACHE_LENGTH = 64  # rows that verification writes: twice its longest call, and one teacher-forced run


class Source:
    """A checkpoint folder, checked when opened: family, configuration, files, quantisable weights.

    Loads no weight. Raises an error of `bundle.errors` that names the fault.
    """

    def __init__(self, folder: Path, weights: Collection[str] = (), adapter: Path | None = None):
        """`weights` are names of files of weights to read in place of the usual ones. `adapter` is the folder
        of an adapter to merge.
        """
        self.folder = folder
        with foreign_format_named(folder):
            self.family = open_family_of(folder, weights, adapter)
            self.config = self.family.layout.load_config(folder)
            self.checkpoint = self.family.open_checkpoint(folder)
            notes: list[str] = []
            if faults := check_parts(folder, self.family, self.config, self.checkpoint, notes):
                raise CheckpointError(*faults)
        self._root = self.family.build_root(self.config)
        for note in notes:
            log.info("%s: %s", folder, note)

    def root(self) -> nn.Module:
        """A new root module on the meta device."""
        return copy.deepcopy(self._root)

    @cached_property
    def files(self) -> dict[str, FileEntry]:
        """Size and hash of every file that a bundle is made from. `adapter/` precedes those of the adapter,
        wherever they are.
        """
        layout = self.family.layout
        paths = {name: self.folder / name for name in layout.source_files(self.folder)}
        if layout.adapter:
            names = ADAPTER_CONFIG, ADAPTER_WEIGHTS
            paths |= {f"{ADAPTER}/{name}": layout.adapter / name for name in names}
        return {name: file_entry(path) for name, path in paths.items()}

    @property
    def licence(self) -> str:
        """Licence of the weights, for people."""
        return self.family.licence_of(self.folder, self.checkpoint, self.config)

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """ISO 639 codes of the languages that the checkpoint names. If it names none, its family's count."""
        return self.family.languages_of(self.folder, self.config) or self.family.languages

    @property
    def tokenizer_files(self) -> tuple[str, ...]:
        """Paths of the tokenizer's files that the checkpoint has."""
        return tuple(self.family.layout.tokenizer_files(self.folder))

    @property
    def float_bytes(self) -> int:
        """Bytes of all weights in full precision."""
        return 4 * sum(parameter.numel() for parameter in self._root.parameters())

    @property
    def is_large(self) -> bool:
        """Whether full precision is too large to hold beside the model by default."""
        return self.float_bytes > MAX_REFERENCE_BYTES

    @cached_property
    def quantizable(self) -> dict[str, nn.Module]:
        """Linears and tables that a recipe may quantise, by path, on the meta device."""
        return {
            path: part
            for path, part in self._root.named_modules()
            if isinstance(part, nn.Linear | nn.Embedding) and not self.family.is_folded(path)
        }

    @cached_property
    def voices(self) -> dict[str, torch.Tensor]:
        """Rows [N, dim] of each voice by name; empty for a family without voices."""
        return self.family.layout.voices(self.folder, self.config)


@dataclass(frozen=True)
class Resolved:
    """A checkpoint with every option of an export decided, whatever the target.

    `request` is what was asked for. `options` are the family's options, with defaults.
    `cache_length` is in rows of the decoder's cache. `recipes` are by graph.
    """

    source: Source
    request: ExportRequest
    options: Record
    cache_length: int
    recipes: dict[str, Recipe]
    calibration: "Calibration | None" = None

    def model(self, layout: LayoutName = "BSHD") -> ModelSpec:
        """Everything that decides the shapes, with caches in `layout`."""
        return ModelSpec(self.source.config, self.options, self.cache_length, layout)

    def components(self, layout: LayoutName = "BSHD") -> tuple[Component, ...]:
        """The components of the family, with caches in `layout`."""
        return self.source.family.components(self.model(layout))

    @cached_property
    def constants(self) -> FamilyConstants:
        """Everything that a runner needs besides names and shapes."""
        return self.source.family.constants(self.source.config, self.options)

    @cached_property
    def graphs(self) -> dict[str, GraphSpec]:
        """The graphs of the family by name."""
        return {graph.name: graph for graph in self.source.family.graphs(self.source.config, self.options)}

    @cached_property
    def graph_of(self) -> dict[str, str]:
        """The graph of each component."""
        return {component.name: component.graph for component in self.components()}

    def default_recipe(self, graph: str) -> str:
        """Name of the recipe of a graph that `quant_for` does not name. Raises RecipeError."""
        return with_min_bits(self.request.quant, self.graphs[graph].min_bits)

    def in_full_precision(self) -> "Resolved":
        """The same without quantisation. Its calibration still changes channels, so states are comparable."""
        return replace(self, recipes=dict.fromkeys(self.recipes, find_recipe("none")))


def resolve(source: Source, request: ExportRequest) -> Resolved:
    """Raises RecipeError or UsageError that names the option that cannot be followed."""
    defaults = source.family.option_defaults(source.config)
    try:
        options: Record = source.family.options(**{**defaults, **request.options})
    except ValidationError as error:
        raise UsageError(first_fault(error), field=str(error.errors()[0]["loc"][0])) from None
    longest = source.family.longest_cache(source.config)
    length = request.cache_length or source.family.default_cache(source.config, options)
    if request.cache_length and not MIN_CACHE_LENGTH <= length <= longest:
        raise RecipeError(
            f"cache_length {length}: expected {MIN_CACHE_LENGTH} to {longest} rows", field="cache_length"
        )
    resolved = Resolved(source, request, options, length, recipes={}, calibration=_calibration(request))
    return replace(resolved, recipes=_resolve_recipes(resolved))


def _calibration(request: ExportRequest) -> "Calibration | None":
    if request.calibration is None:
        return None
    from voxport.export.calibration.store import find_calibration  # few exports need its imports

    return find_calibration(request.calibration)


def _resolve_recipes(resolved: Resolved) -> dict[str, Recipe]:
    """The recipe of each graph. Raises RecipeError if a rule or an override matches no weight or no
    component.
    """
    source, request = resolved.source, resolved.request
    rules = tuple(parse_rule(text) for text in request.rules)
    for rule in rules:
        if not any(fnmatchcase(path, rule.pattern) for path in source.quantizable):
            raise RecipeError(
                f"rules {rule.pattern}: matches no weight; "
                f"paths are as in the checkpoint, like {list(source.quantizable)[-1]}",
                field="rules",
            )
    chosen = _overrides(request, resolved.graph_of)
    recipes = {}
    for name, graph in resolved.graphs.items():
        kept = tuple(Rule(path, None, None) for path in graph.keep_float)
        recipe = chosen.get(name) or resolved.default_recipe(name)
        wide = find_recipe(with_min_bits(recipe, 8))
        kept += tuple(Rule(path, wide.linears, wide.tables) for path in graph.eight_bits)
        recipes[name] = find_recipe(recipe).with_rules(rules + kept)
    for name, recipe in chosen.items():
        _check_override(source, resolved.graphs[name], recipe, rules)
    _check_shapes(resolved, recipes)
    return recipes


def _check_override(source: Source, graph: GraphSpec, recipe: str, rules: tuple[Rule, ...]) -> None:
    """Raises RecipeError if a recipe of `quant_for` has no effect: all weights of the graph stay floats, and
    no rule says otherwise.
    """
    paths = [path for path in source.quantizable if is_below(path, graph.weights)]
    kept = [each for each in graph.keep_float if any(fnmatchcase(path, each) for path in paths)]
    is_kept = all(any(fnmatchcase(path, each) for each in kept) for path in paths)
    has_rule = any(fnmatchcase(path, rule.pattern) for path in paths for rule in rules)
    if kept and is_kept and not has_rule and find_recipe(recipe).schemes:
        raise RecipeError(
            f"quant_for {graph.name}={recipe}: its weights are kept as floats, because their errors are "
            f"heard; a rule quantises them all the same: {kept[0]}={recipe}",
            field="quant_for",
        )


def _overrides(request: ExportRequest, graphs: dict[str, str]) -> dict[str, str]:
    """Names of recipes that `quant_for` gives to graphs; `graphs` maps components to graphs."""
    chosen: dict[str, str] = {}
    for component, recipe in request.quant_for:
        graph = graphs.get(component, component if component in graphs.values() else None)
        if graph is None:
            raise RecipeError(
                f"quant_for {component}={recipe}: no such component; there are {', '.join(graphs)}"
                f"{did_you_mean(component, {*graphs, *graphs.values()})}",
                field="quant_for",
            )
        if chosen.setdefault(graph, recipe) != recipe:
            raise RecipeError(
                f"quant_for {component}={recipe}: shares its weights with a component of recipe "
                f"{chosen[graph]}",
                field="quant_for",
            )
    return chosen


def _check_shapes(resolved: Resolved, recipes: dict[str, Recipe]) -> None:
    """Raises one RecipeError with the rules for all weights whose shape does not fit their scheme."""
    not_storable: dict[str, str] = {}
    for graph, recipe in recipes.items():
        for path, module in resolved.source.quantizable.items():
            is_table = isinstance(module, nn.Embedding)
            scheme = recipe.scheme_for(path, is_table)
            if scheme is None or not is_below(path, resolved.graphs[graph].weights):
                continue
            if reason := scheme.reason_not_storable(module.get_parameter("weight").shape, is_table):
                not_storable.setdefault("*" + ".".join(path.split(".")[-2:]), f"{reason} of {path}")
    if not_storable:
        rules = ", ".join(f"'{pattern}=none'" for pattern in not_storable)
        raise RecipeError(
            f"{next(iter(not_storable.values()))}; use w8, which takes every shape, "
            f"or keep such weights as floats with rules: {rules}"
        )
