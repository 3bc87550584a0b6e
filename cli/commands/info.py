"""Show what a bundle holds and how it was verified."""

import argparse
import json
from pathlib import Path

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.bundle.manifest import Bundle
from voxport.cli.arguments import add_bundle, add_json, embedded_bundle
from voxport.runtime.engines import ENGINES, check_installed
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.text_to_speech import TextToSpeech

EMBEDDED = "the embedded model that speaks"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bundle(parser, EMBEDDED)
    add_json(parser, "the manifest")


def run(arguments: argparse.Namespace) -> int:
    bundle = Bundle(arguments.bundle or embedded_bundle(TextToSpeech))
    bundle.check_hashes()  # the verdict is for the exported bytes
    print(bundle.manifest.model_dump_json(indent=1) if arguments.json else _text(bundle))
    return 0


def _text(bundle: Bundle) -> str:
    manifest, job = bundle.manifest, bundle.job
    options = ", ".join(f"{name} {value}" for name, value in job.options.items()) or "none"
    voices, tokenizer = ", ".join(manifest.voices) or "none", ", ".join(manifest.tokenizer) or "none"
    lines = [
        f"{job.source.name} ({job.family}) for {job.target}, recipe {job.request.quant}, "
        f"{bundle.size / 1e6:.1f} MB",
        f"verification: {manifest.verification.status}, executed by: {manifest.executed_by}",
        "files: all hashes match",
        *(
            [f"calibrated with data {job.calibration_data or 'of an older version'}"]
            if job.calibration
            else ()
        ),
        f"compute precision: {job.compute_precision}{_machine(bundle)}",
        f"options: {options}; cache length {job.cache_length}",
        f"voices: {voices}; tokenizer: {tokenizer}; licence: {job.licence}",
        f"languages: {', '.join(job.languages) or 'as the family'}",
        *(
            f"  {entry.name:<14} {entry.recipe:<6} {entry.bits_per_weight:>6.2f} bits/weight"
            f"  {entry.file}:{entry.entry_point}  {entry.purpose}"
            for entry in bundle.components
        ),
        *(f"note: {remark}" for remark in bundle.remarks()),
    ]
    return "\n".join(lines)


def _machine(bundle: Bundle) -> str:
    """Devices and threads, if there is a choice."""
    if not (engine := ENGINES.get(bundle.job.target)):
        return ""
    devices = engine.devices(bundle.job.compute_precision)
    found = f"; devices: {', '.join(devices)}" if len(devices) > 1 else ""
    threads = EngineOptions().thread_count(bundle)
    return found + (f"; threads on this machine: {threads}" if engine.has_threads else "")


class Mil:
    """Show the functions, inputs, states and operations of an .mlpackage."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("package", type=Path, metavar="MLPACKAGE", help="folder of the package")
        parser.add_argument("--function", metavar="NAME", help="show only this function (default: all)")
        add_json(parser, "the same")

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        check_installed("coreml", str(arguments.package))
        from voxport.runtime.mil import CallError, MilError, Package, describe, describe_text

        try:
            description = describe(Package(arguments.package), arguments.function)
        except CallError as error:
            raise UsageError(str(error)) from None
        except MilError as error:
            raise IntegrityError(str(error)) from None
        print(json.dumps(description, indent=1) if arguments.json else describe_text(description))
        return 0
