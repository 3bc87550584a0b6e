"""Compare a runner with the values of vectors.json of a bundle, in the order of a run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from voxport.bundle.errors import UsageError, VerificationError
from voxport.bundle.manifest import Bundle
from voxport.cli.arguments import add_bundle, add_engine_arguments, add_json, engine_options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bundle(parser)
    parser.add_argument(
        "--check",
        type=Path,
        metavar="FILE.json",
        help="what a runner computed for the request of vectors.json: an object with one or more of its "
        "arrays by name (default: what voxport computes)",
    )
    add_engine_arguments(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from voxport.runtime.engines import open_engine
    from voxport.runtime.families import open_family, read_constants
    from voxport.runtime.vectors import compare, read_found, read_vectors

    bundle = Bundle(arguments.bundle)
    vectors, workload = read_vectors(bundle), open_family(bundle.job.family).vectors
    if arguments.check:
        found = read_found(arguments.check)
    elif workload:
        engine, constants = open_engine(bundle, engine_options(arguments)), read_constants(bundle.job)
        found = workload.computed(engine, bundle, constants, vectors.request)
    else:
        raise UsageError(f"{bundle.job.family}: has no run for vectors; give --check", field="check")
    results = list(compare(vectors, found))
    missing = [expected.name for expected in vectors.values if expected.name not in found]
    if arguments.json:
        print(
            json.dumps({each.name: each.text or None for each in results} | dict.fromkeys(missing, "missing"))
        )
    else:
        for each in results:
            print(f"{each.name:<16} {each.text or 'equal'}")
        for name in missing:
            print(f"{name:<16} missing, not compared")
    if wrong := [each for each in results if each.text]:
        raise VerificationError(
            f"{bundle.folder}: the runner differs from {wrong[0].name} on: {wrong[0].text}"
        )
    return 0
