"""Write a checkpoint of random weights in the published format."""

import argparse
import json
from pathlib import Path

from voxport.cli.arguments import add_json, complete_values, integer

DEFAULT_SIZE = "tiny"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from voxport.model.families import DEFAULT, FAMILIES, public_name

    parser.add_argument("out", type=Path, metavar="OUT", help="a new or empty folder")
    names, default = " or ".join(map(public_name, FAMILIES)), public_name(DEFAULT)
    help_text = f"{names} (default: {default})"
    model = parser.add_argument("--model", default=default, metavar="NAME", help=help_text)
    complete_values(model, map(public_name, FAMILIES))
    sizes = f"one of the family's sizes, which `voxport list` shows (default: {DEFAULT_SIZE})"
    parser.add_argument("--size", default=DEFAULT_SIZE, help=sizes)
    seed = "seed of the weights; the same seed gives the same bytes (default: 0)"
    parser.add_argument("--seed", type=integer(0), default=0, metavar="N", help=seed)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from voxport.model.families import find_family

    key = find_family(arguments.model)  # before torch is imported
    from voxport.model.synthetic.checkpoint import write_checkpoint

    write_checkpoint(arguments.out, arguments.size, arguments.seed, key)
    result = {
        "out": str(arguments.out),
        "family": key,
        "size": arguments.size,
        "seed": arguments.seed,
        "bytes": sum(path.stat().st_size for path in arguments.out.rglob("*") if path.is_file()),
    }
    print(json.dumps(result) if arguments.json else arguments.out)
    return 0
