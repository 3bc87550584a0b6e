"""Arguments of every command that opens an engine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bundle.command import integer

if TYPE_CHECKING:
    from runtime.engines.base import EngineOptions

COMPUTE_PRECISIONS = ("float16", "float32")
COMPUTE_UNITS = ("all", "cpu", "cpu_and_gpu", "cpu_and_ne")


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    threads = "number of threads the engine uses (default: all cores)"
    parser.add_argument("--threads", type=integer(1), metavar="N", help=threads)
    precision = (
        "Core ML bundles: rounding of the reference executor; float16 rounds where the program says, float32 "
        "never (default: float16; on macOS, Core ML runs instead)"
    )
    parser.add_argument("--compute-precision", choices=COMPUTE_PRECISIONS, help=precision)
    add_compute_units(parser)


def add_compute_units(parser: argparse.ArgumentParser) -> None:
    help_text = "Core ML bundles on macOS: processors to use (default: all)"
    parser.add_argument("--compute-units", choices=COMPUTE_UNITS, help=help_text)


def engine_options(arguments: argparse.Namespace) -> EngineOptions:
    from runtime.engines.base import EngineOptions

    return EngineOptions(arguments.threads, arguments.compute_precision, arguments.compute_units)


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the commands that run a task from a bundle."""
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="folder of the bundle")
    no_check = "skip the comparison of the bundle's files with their hashes, which takes 0.6 s per GB"
    parser.add_argument("--no-check", action="store_true", help=no_check)
    add_engine_arguments(parser)
