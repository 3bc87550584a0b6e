"""List models, targets, recipes, and the components, module paths and synthetic sizes of each model."""

from __future__ import annotations

import argparse
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import ExportRequest
from voxport.cli.arguments import add_json
from voxport.cli.preflight import open_source
from voxport.export.targets import TARGETS, default_recipes, open_target, targets_that_hold
from voxport.model.families import FAMILIES, public_name
from voxport.quantize.recipe import RECIPES

if TYPE_CHECKING:
    from voxport.export.resolve import Resolved, Source
    from voxport.model.graph import Component
    from voxport.quantize.schemes import Scheme

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json(parser, "the list")


def run(arguments: argparse.Namespace) -> int:
    families = FAMILIES if find_spec("torch") else ()
    if not families:
        log.warning("components, paths and sizes are not listed, which needs torch")
    sources = {family: open_source(None, family) for family in families}
    resolved = {family: _resolve_in_full(source) for family, source in sources.items()}
    content = {
        "families": {family: row.title for family, row in FAMILIES.items()},
        "targets": list(TARGETS),
        "default_recipes": default_recipes(),
        "recipes": {name: recipe.to_entry().model_dump(mode="json") for name, recipe in RECIPES.items()},
        "components": {
            family: {component.name: component.purpose for component in _components(found)}
            for family, found in resolved.items()
        },
        "paths": {  # N is any layer number
            family: sorted({re.sub(r"\.\d+\.", ".N.", path) for path in source.quantizable})
            for family, source in sources.items()
        },
        "sizes": {family: source.family.synthetic.sizes for family, source in sources.items()},
    }
    kept = {  # patterns of the paths that stay floats by default
        family: {path for graph in found.graphs.values() for path in graph.keep_float}
        for family, found in resolved.items()
    }
    print(json.dumps(content, indent=1) if arguments.json else "\n".join(_lines(content, kept)))
    return 0


def _resolve_in_full(source: Source) -> Resolved:
    """The checkpoint with every family option that adds components."""
    from voxport.export.resolve import resolve

    fields = source.family.options.model_fields.items()
    request = ExportRequest(options={name: True for name, field in fields if field.annotation is bool})
    return resolve(source, request)


def _components(resolved: Resolved) -> Iterator[Component]:
    """The components of every kind of model of a family: each kind has sizes of its own."""
    family, spec = resolved.source.family, resolved.model()
    for size in family.synthetic.sizes:
        yield from family.components(replace(spec, config=family.config_of_size(size)))


def _lines(content: Json, kept: dict[str, set[str]]) -> list[str]:
    """Text of `content`. `kept` has the paths of each family that stay floats by default."""
    lines = [
        f"models      {', '.join(map(public_name, FAMILIES))}",
        f"targets     {', '.join(TARGETS)}",
        *(
            f"recipe      {name:<8} {_scheme_text(recipe.linears)}; tables {_scheme_text(recipe.tables)}"
            for name, recipe in RECIPES.items()
        ),
        *(f"default     {recipe:<8} for {target}" for target, recipe in content["default_recipes"].items()),
        *(
            f"note        {target}, {line}"
            for target in TARGETS
            for line in open_target(target).recipe_notes.splitlines()
        ),
    ]
    for family, components in content["components"].items():
        lines += ["", public_name(family), f"sizes       {', '.join(content['sizes'][family])}"]
        lines += [f"component   {name:<14} {purpose}" for name, purpose in components.items()]
        for path in content["paths"][family]:
            note = "  (kept as floats unless a rule matches)" if path in kept[family] else ""
            lines.append(f"path        {path}{note}")
    return lines


def _scheme_text(scheme: Scheme | None) -> str:
    if scheme is None:
        return "full precision"
    allowed = targets_that_hold(scheme)
    return scheme.describe() + (f" ({', '.join(allowed)} only)" if len(allowed) < len(TARGETS) else "")
