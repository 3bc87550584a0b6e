"""Export a speech checkpoint to ONNX, ExecuTorch or Core ML, quantised and verified."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from export.commands.request import add_request_arguments, check_names, export_request, open_source
from export.targets import TARGETS, check_recipes, open_target, parse_targets

if TYPE_CHECKING:
    from export.resolve import Resolved
    from export.source import Source
    from export.targets.base import Target

ARTIFACTS = Path("artifacts")
log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    targets = f"one or several of {', '.join(TARGETS)}, separated by commas"
    parser.add_argument("--target", required=True, metavar="TARGETS", help=targets)
    add_request_arguments(parser)
    out = (
        f"folder of the bundle, or of all bundles if there are several targets "
        f"(default: {ARTIFACTS}/NAME-TARGET-RECIPE)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help=out)
    parser.add_argument("--force", action="store_true", help="replace the contents of the output folder")
    no_verify = "skip verification; the manifest says unverified"
    parser.add_argument("--no-verify", action="store_true", help=no_verify)
    dry_run = "print the files to write and the estimated memory, time and disk; loads no weights"
    parser.add_argument("--dry-run", action="store_true", help=dry_run)
    parser.add_argument("--json", action="store_true", help="print the results as JSON on stdout")


@dataclass(frozen=True)
class _Export:
    """One invocation: the same checkpoint and request for each target."""

    arguments: argparse.Namespace
    resolved: Resolved
    has_several_targets: bool

    @property
    def name(self) -> str:
        from model.synthetic.checkpoint import embedded_name

        checkpoint: Path | None = self.arguments.checkpoint
        return checkpoint.resolve().name if checkpoint else embedded_name(self.resolved.source.family.name)

    @property
    def licence(self) -> str:
        if self.arguments.checkpoint:
            return f"that of the checkpoint; {self.resolved.source.family.licence}"
        return "none needed: random weights"

    def folder(self, target: str) -> Path:
        request = self.resolved.request
        out: Path | None = self.arguments.out
        if out:
            return out / target if self.has_several_targets else out
        changes = "".join(f"-{component}-{recipe}" for component, recipe in request.quant_for)
        precision = "-float32" if self.arguments.compute_precision == "float32" else ""
        return ARTIFACTS / f"{self.name}-{target}-{request.quant}{changes}{precision}"


def run(arguments: argparse.Namespace) -> int:
    targets = [open_target(name, arguments.compute_precision) for name in parse_targets(arguments.target)]
    check_names(arguments)
    from export.resolve import resolve

    source = open_source(arguments.checkpoint, arguments.model)
    resolved = resolve(source, export_request(arguments, source.family.name))
    for target in targets:  # a wrong rule fails before anything is lowered
        check_recipes(target, resolved.recipes.values())
    _warn_of_missing_parts(source)
    export = _Export(arguments, resolved, len(targets) > 1)
    results = [_export_target(export, target) for target in targets]
    if arguments.json:
        print(json.dumps(results, indent=1))
    else:
        for result in results:
            print(_estimate_text(result) if arguments.dry_run else result["out"])
    return 0


def _warn_of_missing_parts(source: Source) -> None:
    if not source.tokenizer_files:
        log.warning(
            "%s: the checkpoint has no tokenizer; its bundle cannot read or write text", source.folder
        )
    if source.family.format.has_voices and not source.voices:
        log.warning("%s: the checkpoint has no voices", source.folder)


def _export_target(export: _Export, target: Target) -> dict[str, Any]:
    """Writes one bundle, or estimates its export with --dry-run. Returns the result row."""
    from bundle.bundle import Bundle
    from export.build import Output, build
    from export.estimate import estimate, speed
    from export.job import make_job

    arguments, out = export.arguments, export.folder(target.name)
    verifies = not arguments.no_verify
    expected = estimate(export.resolved, target, verifies)
    seconds = expected.pop("reference_seconds")
    if arguments.dry_run:
        return {
            "target": target.name,
            "out": str(out),
            "exists": out.exists(),
            **expected,
            "seconds": round(seconds / speed(), 1),
        }
    job = make_job(export.resolved, target, export.name, export.licence)
    made = build(
        export.resolved, job, target, Output(out, arguments.force, verifies, expected["memory_bytes"])
    )
    bundle = Bundle(out)
    status = bundle.manifest.verification.status
    log.info("%s: %s, %s", out, "written" if made else "up to date, every file checked", status)
    return {"target": target.name, "out": str(out), "made": made, "bytes": bundle.size, "status": status}


def _estimate_text(result: dict[str, Any]) -> str:
    exists = "exists: would be checked, and replaced with --force"
    what = exists if result["exists"] else "would be written"
    disk, memory = f"{result['disk_bytes'] / 1e9:.3f} GB", f"{result['memory_bytes'] / 1e9:.1f} GB"
    rows = [
        f"  {graph:<14} {row['weights'] / 1e6:>9.1f} M weights, {row['bytes'] / 1e6:>9.1f} MB, "
        f"recipe {row['recipe']}"
        for graph, row in result["graphs"].items()
    ]
    return "\n".join(
        (
            f"{result['out']}: {what}; for {result['target']}",
            *rows,
            f"  estimated: {disk} of disk, {memory} of memory at the peak, {result['seconds']:.0f} s "
            "at the current speed of this machine",
        )
    )
