"""Export a speech checkpoint to ONNX, ExecuTorch, Core ML or Core AI, quantised and verified."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.json_types import Json
from voxport.bundle.manifest import Bundle
from voxport.cli.arguments import complete_values
from voxport.cli.checkpoint import add_request_arguments
from voxport.cli.preflight import ARTIFACTS, calibration_data, check_export, check_names, model_name
from voxport.export.targets import TARGETS

if TYPE_CHECKING:
    from voxport.export.estimate import Estimate
    from voxport.export.resolve import Resolved
    from voxport.export.targets.base import Target

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    target = parser.add_argument(
        "--target",
        required=True,
        metavar="TARGETS",
        help=f"one or several of {', '.join(TARGETS)}, separated by commas",
    )
    complete_values(target, TARGETS, separator=",")
    add_request_arguments(parser)
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder of the bundle, or of all bundles if there are several targets "
        f"(default: {ARTIFACTS}/NAME-TARGET-RECIPE, and each option that differs from its default)",
    )
    for flag, help_text in (
        ("--force", "replace another bundle in the output folder; other files there stay"),
        ("--keep-going", "check all graphs even if one does not match eager PyTorch"),
        ("--no-verify", "skip verification; the manifest says unverified"),
        ("--dry-run", "print the files to write and the estimated memory, time and disk; loads no weights"),
        ("--json", "print the results as JSON on stdout"),
    ):
        parser.add_argument(flag, action="store_true", help=help_text)


def check_arguments(arguments: argparse.Namespace) -> None:
    arguments.names = check_names(arguments)


def run(arguments: argparse.Namespace) -> int:
    outputs = check_export(arguments, arguments.names)
    from voxport.export.estimate import estimate

    results = []
    for resolved, target, folder in outputs:
        expected = estimate(resolved, target, not arguments.no_verify)
        if arguments.dry_run:
            results.append(_estimate(arguments, resolved, target, folder, expected))
        else:
            results.append(_export(arguments, resolved, target, folder, expected))
    texts = (_estimate_text(result) if arguments.dry_run else result["out"] for result in results)
    print(json.dumps(results, indent=1) if arguments.json else "\n".join(texts))
    return 0


def _export(
    arguments: argparse.Namespace, resolved: Resolved, target: Target, folder: Path, expected: Estimate
) -> Json:
    """Writes one bundle. Returns its row of the result."""
    from voxport.export.build import OutputSettings, build
    from voxport.export.job import make_job

    job = make_job(resolved, target, model_name(arguments, resolved))
    output = OutputSettings(
        folder, arguments.force, not arguments.no_verify, arguments.keep_going, expected.memory_bytes
    )
    made = build(resolved, job, target, output)
    bundle = Bundle(folder)
    status = bundle.manifest.verification.status
    log.info("%s: %s, %s", folder, "written" if made else "up to date, every file checked", status)
    return {"target": target.name, "out": str(folder), "made": made, "bytes": bundle.size, "status": status}


def _estimate(
    arguments: argparse.Namespace, resolved: Resolved, target: Target, folder: Path, expected: Estimate
) -> Json:
    """The row of an export that is not made."""
    from voxport.export.estimate import speed

    figures = asdict(expected)
    seconds, rate = figures.pop("reference_seconds"), speed()
    calibration = _calibration(arguments, resolved)
    for each in calibration.values():
        each["seconds"] = round(each.pop("reference_seconds", 0) / rate, 1)
    return {
        "target": target.name,
        "out": str(folder),
        "exists": folder.exists(),
        **figures,
        "verifies": not arguments.no_verify,
        **calibration,
        "seconds": round(seconds / rate, 1),
    }


def _calibration(arguments: argparse.Namespace, resolved: Resolved) -> Json:
    given = calibration_data(arguments)
    if given is None:
        return {}
    from voxport.export.calibration.data import data_of, is_listener
    from voxport.export.calibration.free_run import frames_of
    from voxport.export.estimate import calibration_estimate

    data, costs = data_of(resolved, given), Json()
    if data.sentences:  # stored statistics cost nothing
        frames = frames_of(data.sentences, is_listener(resolved), resolved.source.is_large)
        costs = asdict(calibration_estimate(resolved, frames))
    return {"calibration": {**data.to_json(), **costs}}


def _estimate_text(result: Json) -> str:
    exists = "exists: would be checked, and replaced with --force"
    steps = "with verification" if result["verifies"] else "without verification"
    steps += ", after the calibration" if "rows" in result.get("calibration", {}) else ""
    disk, memory = f"{result['disk_bytes'] / 1e9:.3f} GB", f"{result['memory_bytes'] / 1e9:.1f} GB"
    rows = [
        f"  {graph:<18} {row['weights'] / 1e6:>9.1f} M weights, {row['bytes'] / 1e6:>9.1f} MB, "
        f"recipe {row['recipe']}"
        for graph, row in result["graphs"].items()
    ]
    calibration = result.get("calibration", {"sentences": []})
    data = [f"    {name}: {text}" for name, text in calibration["sentences"]]
    if data:
        costs = (
            f"up to {calibration['rows']} frames, estimated {calibration['memory_bytes'] / 1e9:.1f} GB of "
            f"memory and {calibration['seconds']:.0f} s, unless it was made before"
        )
        head = f"  calibration with {len(data)} sentences, sha256 {calibration['sha256']}: {costs}"
        data.insert(0, head)
    return "\n".join(
        (
            f"{result['out']}: {exists if result['exists'] else 'would be written'}; for {result['target']}",
            *rows,
            *data,
            f"  estimated: {disk} of disk, {memory} of memory at the peak, {result['seconds']:.0f} s "
            f"at the current speed of this machine, {steps}",
        )
    )
