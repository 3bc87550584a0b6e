"""Arguments that name a checkpoint and describe an export: they give a `Source` and an `ExportRequest`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundle.command import integer
from bundle.errors import UsageError
from export.commands.family_options import add_family_options, given_options, option_models
from model.families import DEFAULT, FAMILIES, find_family, public_name
from quantize.recipe import RECIPES, find_recipe
from runtime.commands import COMPUTE_PRECISIONS

if TYPE_CHECKING:
    from bundle.manifest import ExportRequest
    from export.source import Source


def add_checkpoint_argument(parser: argparse.ArgumentParser, purpose: str) -> None:
    help_text = f"{purpose} (default: the embedded tiny model with random weights)"
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help=help_text)


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_argument(parser, "folder of a checkpoint as published")
    names = " or ".join(map(public_name, FAMILIES))
    model = f"{names}: family that the checkpoint must have, or of the embedded model"
    model += f" (default: {public_name(DEFAULT)})"
    parser.add_argument("--model", metavar="NAME", help=model)
    quant = f"recipe of all components: {', '.join(RECIPES)} (default: none)"
    parser.add_argument("--quant", default="none", metavar="RECIPE", help=quant)
    override: dict[str, Any] = {"action": "append", "default": []}  # keyword arguments of argparse
    quant_for = "recipe of one component; may be repeated (default: that of --quant)"
    parser.add_argument("--quant-for", metavar="COMPONENT=RECIPE", help=quant_for, **override)
    rule = "recipe of the module paths that match; rules come first, in their order; may be repeated"
    rule += " (default: no rule)"
    parser.add_argument("--quant-rule", dest="rules", metavar="PATTERN=RECIPE", help=rule, **override)
    length = "rows of the KV cache (default: 2048 for text to speech, the model's window for speech to text)"
    parser.add_argument("--cache-length", type=integer(1), metavar="ROWS", help=length)
    precision = "floats of a Core ML bundle (default: float16)"
    parser.add_argument("--compute-precision", choices=COMPUTE_PRECISIONS, help=precision)
    add_family_options(parser, option_models())


def check_names(arguments: argparse.Namespace) -> None:
    """Checks the names of family and recipe before torch is imported. Raises UnknownFamily or RecipeError."""
    find_recipe(arguments.quant)
    if arguments.model:
        find_family(arguments.model)


def open_source(checkpoint: Path | None, model: str | None) -> Source:
    """The checkpoint, or the embedded one of family `model`.

    Raises UsageError if the checkpoint has another family.
    """
    from export.source import Source
    from model.synthetic.checkpoint import embedded_default

    key = find_family(model) if model else DEFAULT
    if checkpoint is None:
        return Source(embedded_default(key))
    source = Source(checkpoint)
    if model and source.family.name != key:
        found, expected = source.family.title, FAMILIES[key].title
        raise UsageError(
            f"{checkpoint}: a checkpoint of {found}, not of {expected}; give another --checkpoint"
        )
    return source


def export_request(arguments: argparse.Namespace, family: str) -> ExportRequest:
    """The request that the arguments describe. Raises UsageError or RecipeError."""
    from bundle.manifest import ExportRequest

    overrides = []
    for text in arguments.quant_for:
        component, separator, recipe = text.partition("=")
        if not separator:
            raise UsageError(f"--quant-for {text!r}: expected COMPONENT=RECIPE, as in codec=none")
        overrides.append((component, find_recipe(recipe).name))
    return ExportRequest(
        quant=arguments.quant,
        quant_for=tuple(overrides),
        rules=tuple(arguments.rules),
        options=given_options(arguments, family, option_models()),
        cache_length=arguments.cache_length,
    )


def full_request(source: Source) -> ExportRequest:
    """A request with every family option that adds components."""
    from bundle.manifest import ExportRequest

    fields = source.family.options.model_fields.items()
    return ExportRequest(options={name: True for name, field in fields if field.annotation is bool})
