"""Everything that a command checks before it loads a weight or opens an engine.

- Every command, `check_outputs` of `cli.arguments`: outputs can be written, and are apart from what is read.
- export, `check_names`, without torch: names of targets, recipes and the model exist, and each target can
  store what the recipes ask for. Then `check_export`: the files of the checkpoint, the options and
  components, shapes that the recipes cannot store, and the output folders.
- Commands that measure a bundle, `check_alone`: every hash, and that its engine opens it. Beside a
  checkpoint, `check_beside_checkpoint`: also the checkpoint's files and every field of the manifest.

`export.build` then checks what is in the output folder, and free memory. A command that speaks or transcribes
opens its bundle with `runtime.opening`, which checks it.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Collection
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.errors import UsageError
from voxport.bundle.files import folder_name
from voxport.quantize.recipe import AUTO, AUTO_BITS

if TYPE_CHECKING:
    from voxport.bundle.manifest import Bundle, ExportJob, ExportRequest
    from voxport.export.resolve import Resolved, Source
    from voxport.export.targets.base import Target

ARTIFACTS = Path("artifacts")  # has the bundles of exports without an output folder
log = logging.getLogger(__name__)


def check_names(arguments: argparse.Namespace) -> list[tuple[Target, ExportRequest]]:
    """The request of an export for each target, without the options of the family. Imports no torch.

    Raises UsageError or RecipeError.
    """
    from voxport.bundle.manifest import ExportRequest
    from voxport.export.targets import check_recipes, open_target, parse_targets
    from voxport.model.families import find_family
    from voxport.quantize.recipe import AUTO_BASE, find_recipe, parse_rule

    targets = [open_target(name, arguments.compute_precision) for name in parse_targets(arguments.target)]
    if arguments.model:
        find_family(arguments.model)
    _check_budget(arguments)
    quant = AUTO_BASE if arguments.quant == AUTO else arguments.quant
    recipes = [find_recipe(quant or target.default_recipe) for target in targets]
    overrides = []
    for text in arguments.quant_for:
        component, separator, name = text.partition("=")
        if not separator:
            raise UsageError(f"--quant-for {text!r}: expected COMPONENT=RECIPE, as in codec=none")
        overrides.append((component, find_recipe(name)))
    rules = tuple(map(parse_rule, arguments.rules))
    for target, recipe in zip(targets, recipes, strict=True):
        check_recipes(target, [recipe.with_rules(rules), *(chosen for _, chosen in overrides)])
    request = ExportRequest(
        quant_for=tuple((component, chosen.name) for component, chosen in overrides),
        rules=tuple(arguments.rules),
        cache_length=arguments.cache_length,
    )
    requests = (request.model_copy(update={"quant": recipe.name}) for recipe in recipes)
    return list(zip(targets, requests, strict=True))


def _check_budget(arguments: argparse.Namespace) -> None:
    """Raises UsageError."""
    for name in ("bits", "frame_mb"):
        flag, value = f"--{name.replace('_', '-')}", getattr(arguments, name)
        if value is None:
            continue
        if arguments.quant != AUTO:
            raise UsageError(f"{flag} is for --quant {AUTO}; leave it out, or add that", field=name)
        if name == "bits" and not 4 < value <= 16:
            raise UsageError(f"{flag} {value:g}: expected more than 4, at most 16", field=name)
        if name == "frame_mb" and not 0 < value < inf:
            raise UsageError(f"{flag} {value:g}: expected more than 0", field=name)


def check_export(
    arguments: argparse.Namespace, requests: list[tuple[Target, ExportRequest]]
) -> list[tuple[Resolved, Target, Path]]:
    """What is exported for each target, and its folder. Raises UsageError, RecipeError or IntegrityError."""
    from voxport.cli.checkpoint import given_options
    from voxport.export.resolve import resolve
    from voxport.export.staging import check_output

    source = open_source(arguments.checkpoint, arguments.model, arguments.weights, arguments.adapter)
    options = given_options(arguments, source.family.name)
    outputs = []
    for target, request in requests:
        request = request.model_copy(update={"options": options})
        resolved = resolve(source, request)
        folder = arguments.out or ARTIFACTS / _bundle_name(arguments, resolved, target)
        if arguments.out and len(requests) > 1:
            folder /= target.name
        check_output(folder)
        outputs.append((resolved, target, folder))
    _warn_of_missing_parts(source)
    if arguments.dry_run:
        return outputs
    for resolved, target, folder in outputs:
        _check_before_calibration(arguments, resolved, target, folder)
    return [
        (_calibrated(arguments, resolved, target), target, folder) for resolved, target, folder in outputs
    ]


def _bundle_name(arguments: argparse.Namespace, resolved: Resolved, target: Target) -> str:
    """Says how the bundle is calibrated, and with a hash the user's own data."""
    from voxport.export.job import bundle_name

    given, parts = calibration_data(arguments), ["calibrated"]
    if given is None:
        return bundle_name(resolved, model_name(arguments, resolved), target)
    if arguments.quant == AUTO:
        mb = arguments.frame_mb
        parts = [f"{AUTO}-{mb:g}MB" if mb else f"{AUTO}-{arguments.bits or AUTO_BITS:g}"]
    if given != Path():
        from voxport.export.calibration.data import data_of

        parts.append(data_of(resolved, given).sha256[:8])
    return bundle_name(resolved, model_name(arguments, resolved), target, "-".join(parts))


def _check_before_calibration(
    arguments: argparse.Namespace, resolved: Resolved, target: Target, folder: Path
) -> None:
    """Refuses a folder with another bundle before a calibration, which may take hours. Raises UsageError."""
    if (given := calibration_data(arguments)) is None or arguments.force:
        return
    from voxport.export.build import check_calibration_there
    from voxport.export.calibration.data import data_of
    from voxport.export.job import make_job

    job = make_job(resolved, target, model_name(arguments, resolved))
    data = {"calibration_data": data_of(resolved, given).sha256}
    check_calibration_there(folder, job.model_copy(update=data), arguments.quant == AUTO)


def _calibrated(arguments: argparse.Namespace, resolved: Resolved, target: Target) -> Resolved:
    """With the statistics of `--calibrate`, and the rules of `--quant auto`, if they are asked for."""
    if (given := calibration_data(arguments)) is None:
        return resolved
    from voxport.export.calibration.mixture import Budget
    from voxport.export.calibration.run import calibrated

    bits = None if arguments.frame_mb else arguments.bits or AUTO_BITS
    budget = Budget(bits, arguments.frame_mb) if arguments.quant == AUTO else None
    return calibrated(resolved, target, given, budget)


def calibration_data(arguments: argparse.Namespace) -> Path | None:
    """What `--calibrate` names; empty for the built-in data; None if nothing is calibrated."""
    given: Path | None = arguments.calibrate
    return Path() if given is None and arguments.quant == AUTO else given


def check_alone(bundle: Bundle) -> None:
    """For commands that measure a bundle. Raises UsageError or IntegrityError."""
    from voxport.runtime.opening import check_engine

    bundle.check_hashes()
    check_engine(bundle)
    _warn_of_no_verification(bundle)


def check_beside_checkpoint(bundle: Bundle, arguments: argparse.Namespace) -> tuple[Resolved, Target]:
    """For commands that compare a bundle with its checkpoint. Raises UsageError or IntegrityError."""
    from voxport.export.targets import target_of_job
    from voxport.export.verify.manifest_check import check_manifest
    from voxport.runtime.opening import check_engine

    bundle.check_hashes()
    source, target = open_source_of(bundle.job, arguments), target_of_job(bundle.job)
    resolved = check_manifest(bundle, source, target)
    check_engine(bundle)
    _warn_of_no_verification(bundle)
    return resolved, target


def open_source(
    checkpoint: Path | None,
    model: str | None,
    weights: Collection[str] = (),
    adapter: Path | None = None,
) -> Source:
    """The checkpoint, or the embedded one of family `model`. `weights` are names of files to read in place of
    the usual ones. `adapter` is the folder of an adapter to merge.

    Raises UsageError if the checkpoint has another family.
    """
    from voxport.export.resolve import Source
    from voxport.model.embedded import embedded_default
    from voxport.model.families import DEFAULT, FAMILIES, find_family

    key = find_family(model) if model else DEFAULT
    source = Source(checkpoint or embedded_default(key), weights, adapter)
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
    from voxport.export.resolve import ADAPTER
    from voxport.export.verify.manifest_check import check_source
    from voxport.model.checkpoint_layout import SUFFIX
    from voxport.model.embedded import embedded_default
    from voxport.model.families import layouts_of
    from voxport.model.foreign import ADAPTER_CONFIG

    folder = arguments.checkpoint or embedded_default(job.family)
    places = {file.path.parent for file in layouts_of(job.family)[0].single_files(folder)}
    recorded = [name for name in job.source.files if name.endswith(SUFFIX)]
    recorded = [name for name in recorded if (folder / name).is_file() and (folder / name).parent in places]
    has_adapter = f"{ADAPTER}/{ADAPTER_CONFIG}" in job.source.files
    adapter = arguments.adapter or (folder if has_adapter else None)
    source = open_source(folder, job.family, arguments.weights or recorded, adapter)
    check_source(job.source.files, source, arguments.checkpoint is None)
    return source


def model_name(arguments: argparse.Namespace, resolved: Resolved) -> str:
    """The name of the checkpoint, for its bundle."""
    from voxport.model.embedded import embedded_name

    family = resolved.source.family.name
    return folder_name(arguments.checkpoint) if arguments.checkpoint else embedded_name(family)


def _warn_of_missing_parts(source: Source) -> None:
    files = source.family.layout
    if files.has_tokenizer and not source.tokenizer_files:
        log.warning(
            "%s: the checkpoint has no tokenizer; its bundle cannot read or write text", source.folder
        )
    if files.has_voices and not source.voices:
        log.warning("%s: the checkpoint has no voices", source.folder)
    if not (source.checkpoint.is_random or source.family.languages_of(source.folder, source.config)):
        message = "%s: no file names its languages, so they are %s; list its own as `language` in README.md"
        log.warning(message, source.folder, ", ".join(source.languages))
    for use, names in source.family.unused_tensors(source.checkpoint, source.config).items():
        log.warning("%s: %d tensors are unused; they are for %s", source.folder, len(names), use)


def _warn_of_no_verification(bundle: Bundle) -> None:
    if not bundle.is_verified:
        log.warning("%s: this bundle is %s", bundle.folder, bundle.manifest.verification.status)
