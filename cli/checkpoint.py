"""Arguments that name a checkpoint and describe an export, and checks of a bundle beside its checkpoint."""

from __future__ import annotations

import argparse
import logging
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from pydantic.fields import FieldInfo

from voxport.bundle.errors import UsageError
from voxport.bundle.files import folder_name
from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle, ExportJob, ExportRequest, Precision
from voxport.cli.arguments import complete_values, integer
from voxport.model.checkpoint_layout import SUFFIX
from voxport.model.families import (
    DEFAULT,
    FAMILIES,
    find_family,
    layouts_of,
    options_of,
    public_name,
)
from voxport.quantize.recipe import RECIPES, find_recipe

if TYPE_CHECKING:
    from voxport.export.resolve import Resolved, Source
    from voxport.export.targets.base import Target

log = logging.getLogger(__name__)


def add_weights_argument(parser: argparse.ArgumentParser) -> None:
    """The option of every command that reads a checkpoint."""
    help_text = (
        "file of weights in the checkpoint to read, or index of its shards (default: the published one)"
    )
    parser.add_argument("--weights", nargs=1, default=(), metavar="FILE", help=help_text)


def add_checkpoint_argument(parser: argparse.ArgumentParser, purpose: str) -> None:
    help_text = f"{purpose} (default: the embedded tiny model)"
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help=help_text)
    add_weights_argument(parser)


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    add_checkpoint_argument(parser, "folder of a checkpoint as published")
    families = tuple(map(public_name, FAMILIES))
    model = parser.add_argument(
        "--model",
        metavar="NAME",
        help=f"{' or '.join(families)}: family that the checkpoint must have, or of the "
        f"embedded model (default: {public_name(DEFAULT)})",
    )
    complete_values(model, families)
    quant = parser.add_argument(
        "--quant",
        default="none",
        metavar="RECIPE",
        help=f"recipe of all components: {', '.join(RECIPES)} (default: none)",
    )
    complete_values(quant, RECIPES)
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
    parser.add_argument(
        "--cache-length",
        type=integer(1),
        metavar="ROWS",
        help="rows of the KV cache (default: 2048 for text to speech, the model's window for speech to text)",
    )
    parser.add_argument(
        "--compute-precision",
        choices=get_args(Precision),
        help="floats of an ONNX or Core ML bundle (default: float32 for ONNX, float16 for Core ML)",
    )
    add_family_options(parser)


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


def open_source(checkpoint: Path | None, model: str | None, weights: Collection[str] = ()) -> Source:
    """The checkpoint, or the embedded one of family `model`. `weights` are names of files to read in place of
    the usual ones.

    Raises UsageError if the checkpoint has another family.
    """
    from voxport.export.resolve import Source
    from voxport.model.embedded import embedded_default

    key = find_family(model) if model else DEFAULT
    source = Source(checkpoint or embedded_default(key), weights)
    if model and source.family.name != key:
        raise UsageError(
            f"{checkpoint}: a checkpoint of {source.family.title}, not of {FAMILIES[key].title}; "
            "give another --checkpoint"
        )
    return source


def open_source_of(job: ExportJob, arguments: argparse.Namespace) -> Source:
    """The checkpoint of a bundle, with the weights that it was made from.

    Raises UsageError if it is another one.
    """
    from voxport.export.verify.manifest_check import check_source
    from voxport.model.embedded import embedded_default

    folder = arguments.checkpoint or embedded_default(job.family)
    places = {file.path.parent for file in layouts_of(job.family)[0].single_files(folder)}
    recorded = [name for name in job.source.files if name.endswith(SUFFIX)]
    recorded = [name for name in recorded if (folder / name).is_file() and (folder / name).parent in places]
    source = open_source(folder, job.family, arguments.weights or recorded)
    check_source(job.source.files, source, arguments.checkpoint is None)
    return source


def resolve_arguments(arguments: argparse.Namespace) -> Resolved:
    """The checkpoint and the request that the arguments describe. Raises UsageError or RecipeError.

    Wrong names of a family or a recipe are found before torch is imported.
    """
    quant = find_recipe(arguments.quant).name
    if arguments.model:
        find_family(arguments.model)
    from voxport.export.resolve import resolve

    source, overrides = open_source(arguments.checkpoint, arguments.model, arguments.weights), []
    for text in arguments.quant_for:
        component, separator, recipe = text.partition("=")
        if not separator:
            raise UsageError(f"--quant-for {text!r}: expected COMPONENT=RECIPE, as in codec=none")
        overrides.append((component, find_recipe(recipe).name))
    request = ExportRequest(
        quant=quant,
        quant_for=tuple(overrides),
        rules=tuple(arguments.rules),
        options=given_options(arguments, source.family.name),
        cache_length=arguments.cache_length,
    )
    return resolve(source, request)


def model_name(arguments: argparse.Namespace, resolved: Resolved) -> str:
    """The name of the checkpoint, for its bundle."""
    from voxport.model.embedded import embedded_name

    family = resolved.source.family.name
    return folder_name(arguments.checkpoint) if arguments.checkpoint else embedded_name(family)


def check_alone(bundle: Bundle) -> None:
    """For commands that measure a bundle: every hash, and that its engine opens it.

    Raises UsageError or IntegrityError.
    """
    from voxport.runtime.opening import check_engine

    bundle.check_hashes()
    check_engine(bundle)
    _warn_of_no_verification(bundle)


def check_beside_checkpoint(bundle: Bundle, arguments: argparse.Namespace) -> tuple[Resolved, Target]:
    """For commands that compare a bundle with its checkpoint: every hash, the files of the checkpoint, every
    field of the manifest, and that its engine opens it.

    Raises UsageError or IntegrityError.
    """
    from voxport.export.targets import target_of_job
    from voxport.export.verify.manifest_check import check_manifest
    from voxport.runtime.opening import check_engine

    bundle.check_hashes()
    source, target = open_source_of(bundle.job, arguments), target_of_job(bundle.job)
    resolved = check_manifest(bundle, source, target)
    check_engine(bundle)
    _warn_of_no_verification(bundle)
    return resolved, target


def _warn_of_no_verification(bundle: Bundle) -> None:
    if not bundle.is_verified:
        log.warning("%s: this bundle is %s", bundle.folder, bundle.manifest.verification.status)
