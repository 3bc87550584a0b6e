"""List models, targets, recipes, and the components and module paths of each model."""

from __future__ import annotations

import argparse
import json
import re
from typing import TYPE_CHECKING, Any

from export.commands.request import full_request, open_source
from export.targets import TARGETS, targets_that_hold
from model.families import FAMILIES, public_name
from quantize.recipe import RECIPES
from quantize.schemes import Scheme

if TYPE_CHECKING:
    from export.source import Source


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the list as JSON on stdout")


def run(arguments: argparse.Namespace) -> int:
    sources = {family: open_source(None, family) for family in FAMILIES}
    print(json.dumps(_content(sources), indent=1) if arguments.json else "\n".join(_lines(sources)))
    return 0


def _content(sources: dict[str, Source]) -> dict[str, Any]:
    return {
        "families": {family: row.title for family, row in FAMILIES.items()},
        "targets": list(TARGETS),
        "recipes": {name: recipe.to_dict() for name, recipe in RECIPES.items()},
        "components": {family: _components(source) for family, source in sources.items()},
        "paths": {family: _paths(source) for family, source in sources.items()},
    }


def _components(source: Source) -> dict[str, str]:
    """Component name -> purpose, with every option that adds components."""
    from export.resolve import resolve

    return {
        component.name: component.purpose for component in resolve(source, full_request(source)).components()
    }


def _paths(source: Source) -> list[str]:
    """Module paths that a recipe may quantise; N is any layer number."""
    return sorted({re.sub(r"\.\d+\.", ".N.", path) for path in source.quantizable})


def _lines(sources: dict[str, Source]) -> list[str]:
    lines = [
        f"models      {', '.join(map(public_name, FAMILIES))}",
        f"targets     {', '.join(TARGETS)}",
        *(
            f"recipe      {name:<8} {_scheme_text(recipe.linears)}; tables {_scheme_text(recipe.tables)}"
            for name, recipe in RECIPES.items()
        ),
    ]
    for family, source in sources.items():
        lines += ["", public_name(family)]
        lines += [f"component   {name:<14} {purpose}" for name, purpose in _components(source).items()]
        for path in _paths(source):
            note = "  (kept as floats unless a rule matches)" if path in source.family.high_precision else ""
            lines.append(f"path        {path}{note}")
    return lines


def _scheme_text(scheme: Scheme | None) -> str:
    if scheme is None:
        return "full precision"
    allowed = targets_that_hold(scheme)
    return scheme.describe() + (f" ({', '.join(allowed)} only)" if len(allowed) < len(TARGETS) else "")
