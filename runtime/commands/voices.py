"""List the voices of a bundle, with the number of rows of each."""

import argparse
import json
from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.runtime.families import open_family


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    parser.add_argument("--json", action="store_true", help="print the number of rows by voice as JSON")


def run(arguments: argparse.Namespace) -> int:
    bundle = Bundle(arguments.bundle)
    rows = open_family(bundle.job.family).voices(bundle)
    if not rows and not arguments.json:
        raise UsageError(f"{arguments.bundle}: has no voices; give say a voice file with --voice")
    lines = "\n".join(f"{name:<16} {count} rows" for name, count in rows.items())
    print(json.dumps(rows) if arguments.json else lines)
    return 0
