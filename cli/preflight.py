"""Checks of a command before it loads or computes anything."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.files import check_apart, check_writable

if TYPE_CHECKING:
    from voxport.bundle.manifest import Bundle
    from voxport.export.resolve import Resolved
    from voxport.export.targets.base import Target

FILES = "output", "report"  # names of the arguments that are files to write
FOLDERS = ("voices",)  # the same for folders
ARTIFACTS = Path("artifacts")
log = logging.getLogger(__name__)


def check_outputs(arguments: argparse.Namespace) -> None:
    """For every command: each output can be written, is outside of the bundles, and is not also read.

    Raises UsageError.
    """
    values = {name: value if isinstance(value, list) else [value] for name, value in vars(arguments).items()}
    paths = {
        name: [Path(each) for each in found if isinstance(each, Path) or (name == "sources" and each)]
        for name, found in values.items()
    }
    inputs = [path for name, found in paths.items() if name not in FILES + FOLDERS for path in found]
    for name in FILES + FOLDERS:
        for output in paths.get(name, []):
            check_apart(output, name, paths.get("bundle", []), inputs)
            if name in FILES:
                check_writable(output)


def check_alone(bundle: Bundle) -> None:
    """For commands that measure a bundle: every hash, and that its engine opens it.

    Raises UsageError or IntegrityError.
    """
    from voxport.runtime.engines.trial import trial_run

    bundle.check_hashes()
    trial_run(bundle)
    _warn_of_no_verification(bundle)


def check_beside_checkpoint(bundle: Bundle, arguments: argparse.Namespace) -> tuple[Resolved, Target]:
    """For commands that compare a bundle with its checkpoint: every hash, the files of the checkpoint, every
    field of the manifest, and that its engine opens it.

    Raises UsageError or IntegrityError.
    """
    from voxport.cli.checkpoint import open_source_of
    from voxport.export.targets import target_of_job
    from voxport.export.verify.manifest_check import check_manifest
    from voxport.runtime.engines.trial import trial_run

    bundle.check_hashes()
    source, target = open_source_of(bundle.job, arguments), target_of_job(bundle.job)
    resolved = check_manifest(bundle, source, target)
    trial_run(bundle)
    _warn_of_no_verification(bundle)
    return resolved, target


def check_export(arguments: argparse.Namespace) -> tuple[Resolved, list[tuple[Target, Path]]]:
    """For `export`: the targets, the checkpoint and its recipes, and each output folder.

    `build` then checks what is in the folder, and free memory. Raises UsageError, RecipeError or
    IntegrityError.
    """
    from voxport.cli.checkpoint import model_name, resolve_arguments
    from voxport.export.job import bundle_name
    from voxport.export.staging import check_output
    from voxport.export.targets import check_recipes, open_target, parse_targets

    targets = [open_target(name, arguments.compute_precision) for name in parse_targets(arguments.target)]
    resolved = resolve_arguments(arguments)
    folders = []
    for target in targets:
        check_recipes(target, resolved.recipes.values())
        folder = arguments.out or ARTIFACTS / bundle_name(resolved, model_name(arguments, resolved), target)
        if arguments.out and len(targets) > 1:
            folder /= target.name
        check_output(folder)
        folders.append(folder)
    _warn_of_missing_parts(resolved)
    return resolved, list(zip(targets, folders, strict=True))


def _warn_of_no_verification(bundle: Bundle) -> None:
    if not bundle.is_verified:
        log.warning("%s: this bundle is %s", bundle.folder, bundle.manifest.verification.status)


def _warn_of_missing_parts(resolved: Resolved) -> None:
    source, files = resolved.source, resolved.source.family.layout
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
