"""Arguments that name a checkpoint and describe an export."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from pydantic.fields import FieldInfo

from voxport.bundle.errors import UsageError
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Precision
from voxport.bundle.names import HUB_FORM
from voxport.cli.arguments import complete_values, folder, integer
from voxport.export.targets import default_recipes
from voxport.model.families import DEFAULT, FAMILIES, options_of, public_name
from voxport.quantize.recipe import AUTO, AUTO_BITS, RECIPES


def add_weights_argument(parser: argparse.ArgumentParser) -> None:
    """The options of every command that reads a checkpoint."""
    help_text = (
        "file of weights in the checkpoint to read, or index of its shards (default: the published one)"
    )
    parser.add_argument("--weights", nargs=1, default=(), metavar="FILE", help=help_text)
    help_text = (
        "folder of a LoRA adapter of peft to merge, or its name in the hub (default: the one in the "
        "checkpoint's folder)"
    )
    parser.add_argument("--adapter", type=folder, metavar="DIR", help=help_text)


def add_checkpoint_argument(parser: argparse.ArgumentParser, purpose: str) -> None:
    help_text = f"{purpose}, or a name in the hub, {HUB_FORM} (default: the embedded tiny model)"
    parser.add_argument("--checkpoint", type=folder, metavar="DIR", help=help_text)
    add_weights_argument(parser)


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_argument(parser, "folder of a checkpoint as published")
    families = tuple(map(public_name, FAMILIES))
    help_text = f"family of the checkpoint, or of the embedded model (default: {public_name(DEFAULT)})"
    model = parser.add_argument("--model", metavar="NAME", help=f"{' or '.join(families)}: {help_text}")
    complete_values(model, families)
    _add_recipe(parser)
    parser.add_argument(
        "--quant-for",
        action="append",
        default=[],
        metavar="COMPONENT=RECIPE",
        help="recipe of one component; may be repeated (default: the recipe of --quant)",
    )
    parser.add_argument(
        "--quant-rule",
        dest="rules",
        action="append",
        default=[],
        metavar="PATTERN=RECIPE",
        help="recipe of the module paths that match; rules come first, in their order; may be repeated "
        "(default: no rule)",
    )
    _add_calibrate(parser)
    parser.add_argument(
        "--cache-length",
        type=integer(1),
        metavar="ROWS",
        help="rows of the KV cache (default: 2048 for text to speech, the model's window for speech to text)",
    )
    parser.add_argument(
        "--compute-precision",
        choices=get_args(Precision),
        help="floats of a bundle for ONNX, Core ML or Core AI (default: float32 for ONNX, else float16)",
    )
    add_family_options(parser)


def _add_recipe(parser: argparse.ArgumentParser) -> None:
    own = (f", {recipe} for {target}" for target, recipe in default_recipes().items() if recipe != "none")
    quant = parser.add_argument(
        "--quant",
        metavar="RECIPE",
        help=f"recipe of all components: {', '.join(RECIPES)} (default: none{''.join(own)}); `voxport list` "
        "describes them, and says which are for which compute unit of Core AI. "
        f"{AUTO}: the mixture of 4 and 8 bits that loses least within --bits or --frame-mb",
    )
    complete_values(quant, (*RECIPES, AUTO))
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--bits",
        type=float,
        metavar="B",
        help=f"with --quant {AUTO}: bits per weight of linears, with their scales (default: {AUTO_BITS}); "
        "linears that have another recipe by a rule or by the family do not count",
    )
    budget.add_argument(
        "--frame-mb",
        type=float,
        metavar="MB",
        help=f"with --quant {AUTO}, in place of --bits: MB of weights that are read for a frame, which is "
        "their time times the bandwidth of the memory",
    )


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calibrate",
        nargs="?",
        type=Path,
        const=Path(),
        metavar="DATA",
        help="quantise with what the model meets when it speaks or hears DATA: a text file or a folder of "
        "recordings as for `evaluate`, or statistics of an earlier calibration (without DATA: built-in "
        "sentences; default: weights alone decide)",
    )


def add_family_options(parser: argparse.ArgumentParser) -> None:
    """One argument for each name of an option. An option that is not given is None."""
    group = parser.add_argument_group("options of a model family")
    help_texts: dict[tuple[str, bool], list[str]] = {}
    for family, row in FAMILIES.items():
        for name, field in options_of(family).model_fields.items():
            key = f"--{name.replace('_', '-')}", field.annotation is bool
            help_texts.setdefault(key, []).append(f"{row.title}: {_help(field)}")
    for (flag, is_switch), texts in help_texts.items():
        help_text = "; ".join(texts)
        if is_switch:
            group.add_argument(flag, action="store_const", const=True, help=help_text)
        else:
            group.add_argument(flag, metavar="VALUE", help=help_text)


def _help(field: FieldInfo) -> str:
    if field.annotation is bool:
        return str(field.description)
    choices = get_args(field.annotation)
    values = f", one of {', '.join(map(str, choices))}" if choices else ""
    return f"{field.description}{values} (default: {field.default})".replace("%", "%%")


def given_options(arguments: argparse.Namespace, family: str) -> Json:
    """The options that were given, by name. Raises UsageError on an option of another family."""
    own = options_of(family).model_fields
    for other, row in FAMILIES.items():
        for name in options_of(other).model_fields.keys() - own.keys():
            if getattr(arguments, name) is not None:
                raise UsageError(
                    f"{name}: an option of {row.title}; this checkpoint is {FAMILIES[family].title}",
                    field=name,
                )
    return {name: value for name in own if (value := getattr(arguments, name)) is not None}
