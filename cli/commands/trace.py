"""Run a bundle on given inputs, or eager PyTorch in its place, and write every intermediate value as .npz."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.cli.arguments import add_bundle, add_engine_arguments, add_json, add_output, engine_options
from voxport.cli.checkpoint import add_checkpoint_argument
from voxport.cli.preflight import check_alone, check_beside_checkpoint

if TYPE_CHECKING:
    from voxport.runtime.engines.base import Engine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bundle(parser)
    inputs = "arrays to read; docs/runtime.md lists their names"
    parser.add_argument("--inputs", type=Path, required=True, metavar="IN.npz", help=inputs)
    add_output(parser, "OUT.npz", "file for the intermediate values", required=True)
    parser.add_argument(
        "--live", action="store_true", help="speech to text: run in steps of 80 ms, as for live audio"
    )
    eager = "run eager PyTorch with the integers and the arithmetic of the bundle; needs the extra [export]"
    parser.add_argument("--eager", action="store_true", help=eager)
    add_checkpoint_argument(parser, "with --eager: checkpoint the bundle was exported from")
    add_engine_arguments(parser)
    add_json(parser, "the shapes of the written arrays")


def run(arguments: argparse.Namespace) -> int:
    from voxport.runtime.families import open_family, read_constants
    from voxport.runtime.trace import read_inputs, write_outputs

    if arguments.checkpoint and not arguments.eager:
        raise UsageError("checkpoint: needs --eager; give both or none", field="checkpoint")
    bundle = Bundle(arguments.bundle)
    constants, trace = read_constants(bundle.job), open_family(bundle.job.family).trace
    inputs = read_inputs(arguments.inputs, trace.inputs(constants))
    tokenizer_files = [bundle.folder / name for name in bundle.manifest.tokenizer]
    outputs = trace.run(_engine(bundle, arguments), constants, inputs, arguments.live, tokenizer_files)
    write_outputs(arguments.output, outputs)
    shapes = {name: array.shape for name, array in outputs.items()}
    print(json.dumps(shapes) if arguments.json else arguments.output)
    return 0


def _engine(bundle: Bundle, arguments: argparse.Namespace) -> Engine:
    if arguments.eager:
        from voxport.export.evaluation.run import eager_engine

        resolved, target = check_beside_checkpoint(bundle, arguments)
        return eager_engine(bundle, resolved, target, target.compute_precision)
    from voxport.runtime.engines import open_engine

    check_alone(bundle)
    return open_engine(bundle, engine_options(arguments))
