"""Write a model repository for Triton Inference Server: one model for each graph of an ONNX bundle."""

import argparse
from pathlib import Path

from bundle.command import integer
from runtime.commands import add_threads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="folder of an ONNX bundle")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="model repository, a new or empty folder"
    )
    parser.add_argument(
        "--graph",
        action="append",
        default=[],
        metavar="NAME",
        help="graph to write; repeat it for several (default: all)",
    )
    parser.add_argument(
        "--sequences",
        type=integer(1, 1024),
        default=4,
        metavar="N",
        help="sequences whose states Triton holds at a time (default: 4)",
    )
    parser.add_argument(
        "--batch",
        type=integer(1, 1024),
        default=1,
        metavar="N",
        help="sequences that one call of a graph with a cache serves; above 1, a request has one row of a "
        "prompt (default: 1)",
    )
    add_threads(parser, "each graph", "all cores")


def run(arguments: argparse.Namespace) -> int:
    from runtime.triton.config import Serving
    from runtime.triton.repository import write_repository

    serving = Serving(arguments.batch, arguments.sequences, arguments.threads)
    for name in write_repository(arguments.bundle, arguments.out, arguments.graph, serving):
        print(arguments.out / name)
    return 0
