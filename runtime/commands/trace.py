"""Run a bundle on given inputs and write every intermediate value as .npz."""

import argparse
import json
from pathlib import Path

from voxport.bundle.files import check_writable
from voxport.bundle.manifest import Bundle
from voxport.runtime.commands import add_engine_arguments, engine_options
from voxport.runtime.engines import open_engine
from voxport.runtime.engines.trial import trial_run
from voxport.runtime.families import open_family, read_constants
from voxport.runtime.text.tokenizer import tokenizer_files
from voxport.runtime.trace import read_inputs, write_outputs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
    add_trace_arguments(parser)
    add_engine_arguments(parser)


def add_trace_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that the trace of a bundle and of eager PyTorch have in common."""
    parser.add_argument(
        "--inputs",
        type=Path,
        required=True,
        metavar="IN.npz",
        help="arrays to read; docs/runtime.md lists their names",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="OUT.npz",
        help="file for the intermediate values",
    )
    parser.add_argument(
        "--live", action="store_true", help="speech to text: run in steps of 80 ms, as for live audio"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the shapes of the written arrays as JSON on stdout"
    )


def run(arguments: argparse.Namespace) -> int:
    bundle = Bundle(arguments.bundle)
    bundle.check_hashes()
    constants, trace = read_constants(bundle.job), open_family(bundle.job.family).trace
    inputs = read_inputs(arguments.inputs, trace.inputs(constants))
    check_writable(arguments.output)
    trial_run(bundle)
    engine, files = open_engine(bundle, engine_options(arguments)), tokenizer_files(bundle)
    outputs = trace.run(engine, constants, inputs, arguments.live, files)
    write_outputs(arguments.output, outputs)
    shapes = {name: array.shape for name, array in outputs.items()}
    print(json.dumps(shapes) if arguments.json else arguments.output)
    return 0
