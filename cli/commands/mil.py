"""Show the functions, inputs, states and operations of an .mlpackage."""

import argparse
import json
from pathlib import Path

from voxport.bundle.errors import IntegrityError, UsageError
from voxport.cli.arguments import add_json
from voxport.runtime.engines import check_installed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("package", type=Path, metavar="MLPACKAGE", help="folder of the package")
    parser.add_argument("--function", metavar="NAME", help="show only this function (default: all)")
    add_json(parser, "the same")


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
