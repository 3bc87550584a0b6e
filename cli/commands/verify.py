"""Verify a bundle again: every hash and manifest field, then every number against eager PyTorch."""

from __future__ import annotations

import argparse
import logging
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.errors import UsageError, VerificationError, VoxportError
from voxport.bundle.files import hub_origin, write_whole
from voxport.bundle.manifest import REPORT, Bundle
from voxport.bundle.progress import progress
from voxport.cli.arguments import add_bundle, add_engine_options, add_json, engine_options, integer
from voxport.cli.checkpoint import add_checkpoint_argument
from voxport.cli.preflight import check_alone, check_beside_checkpoint
from voxport.runtime.engines import check_options

if TYPE_CHECKING:
    from voxport.export.resolve import Resolved

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bundle(parser)
    add_checkpoint_argument(parser, "checkpoint the bundle was exported from")
    parser.add_argument(
        "--steps",
        type=integer(1),
        default=1000,
        metavar="N",
        help="decode steps of the long run, at most the cache length; 200 in a second precision; the "
        "other checks take as long with fewer steps (default: 1000)",
    )
    add_engine_options(
        parser,
        compute_precision="float32, then float16; Core AI: copies in these, then single calls as stored",
        compute_units="all, which is the only value here for Core AI",
    )
    parser.add_argument(
        "--long-codes",
        action="store_true",
        help="Qwen3-TTS above 2 GB of floats: also compare codes over --steps frames, and free runs as long, "
        "with full precision; takes minutes for a hundred frames, and memory for all weights as floats",
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE.html", help="write a page of charts, sound and figures"
    )
    add_json(parser, "the report")


def run(arguments: argparse.Namespace) -> int:
    bundle = Bundle(arguments.bundle)
    _check_options(bundle, arguments)
    if arguments.long_codes:
        _check_long_codes(bundle)
    for remark in bundle.remarks():
        log.info("%s: %s", bundle.folder, remark)
    if find_spec("torch") is None:
        check_alone(bundle)
        raise UsageError(
            "every hash is right, and the engine opens the bundle; to compare its numbers, torch is missing: "
            "run pip install 'voxport[export]'"
        )
    resolved, target = check_beside_checkpoint(bundle, arguments)
    from voxport.export.model import Model
    from voxport.export.verify.checks import count_steps, verify
    from voxport.export.verify.modes import VerifyOptions
    from voxport.export.verify.result import failures, summary

    if arguments.long_codes:
        _check_memory_of_long_codes(resolved, bundle)
    model = Model(resolved, target.layout, bundle.job.compute_precision)
    verify_options = VerifyOptions(arguments.steps, engine_options(arguments), arguments.long_codes)
    with progress(count_steps(resolved, target, verify_options), "checks"):
        result = verify(bundle, model, target, verify_options)
    if arguments.report:
        from voxport.export.verify.page import write_page

        write_page(arguments.report, bundle, result, model.layer_errors)
    report = result.as_json()
    _write_into_bundle(arguments.bundle / REPORT, report)
    if arguments.json:
        print(report.strip())
    else:
        hint = "--json prints every comparison; docs/verification.md explains the columns"
        print(summary(result), hint, sep="\n\n")
    if arguments.report:
        log.info("%s: written", arguments.report)
    if not result.passed:
        raise VerificationError(f"{arguments.bundle} does not match eager: {'; '.join(failures(result)[:3])}")
    return 0


def _check_options(bundle: Bundle, arguments: argparse.Namespace) -> None:
    """Raises UsageError on options that neither the engine nor verification has."""
    from voxport.export.targets import target_of_job

    options, precisions = engine_options(arguments), target_of_job(bundle.job).verification_precisions
    chosen, units = options.compute_precision, options.compute_units
    # verification has precisions that an engine does not
    check_options(bundle, replace(options, compute_precision=None) if chosen in precisions else options)
    if units not in (None, "all") and (chosen or None not in precisions):
        raise UsageError(f"--compute-units {units}: verification uses no compute units here; leave it out")


def _check_long_codes(bundle: Bundle) -> None:
    """Raises UsageError for a family without this check."""
    from voxport.runtime.families import open_family

    family = bundle.job.family
    if open_family(family).verification.rollout is None:
        raise UsageError(f"--long-codes: {family} has no such check; leave it out")


def _check_memory_of_long_codes(resolved: Resolved, bundle: Bundle) -> None:
    """Raises ExportError without the memory that `--long-codes` needs."""
    from voxport.export.memory import check_memory

    if resolved.source.is_large:  # small models have this check without the option
        check_memory(resolved.source.float_bytes + 2 * bundle.size, "--long-codes", "leave it out")


def _write_into_bundle(path: Path, report: str) -> None:
    if hub_origin(path.parent):  # its files are links to those that the hub's client compares by name
        log.info("%s: not written, because it would change the hub's cache", path)
        return
    try:
        write_whole(path, report.encode())
    except VoxportError as error:  # the folder of the bundle may be read-only
        log.warning("%s", error)
