"""List the voices of a bundle, with the number of rows of each."""

import argparse
import json

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.cli.arguments import add_bundle, add_json
from voxport.runtime.families import open_family


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bundle(parser)
    add_json(parser, "the number of rows by voice")


def run(arguments: argparse.Namespace) -> int:
    bundle = Bundle(arguments.bundle)
    rows = open_family(bundle.job.family).voices(bundle)
    if not rows and not arguments.json:
        raise UsageError(f"{arguments.bundle}: has no voices; give say a voice file with --voice")
    lines = "\n".join(f"{name:<16} {count} rows" for name, count in rows.items())
    print(json.dumps(rows) if arguments.json else lines)
    return 0
