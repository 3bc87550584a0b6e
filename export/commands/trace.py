"""Run eager PyTorch on given inputs and write every intermediate value as .npz."""

import argparse
import json

from voxport.bundle.completion import complete_values
from voxport.bundle.errors import UsageError
from voxport.bundle.files import check_writable
from voxport.export.commands.request import add_request_arguments, resolve_arguments
from voxport.export.targets import TARGETS, check_recipes, open_target, parse_targets
from voxport.runtime.commands.trace import add_trace_arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_arguments(parser)
    target = parser.add_argument(
        "--target",
        metavar="TARGET",
        help=f"activation arithmetic of a quantised model: that of {', '.join(TARGETS)} (default: floats)",
    )
    complete_values(target, TARGETS)
    add_trace_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    targets = parse_targets(arguments.target) if arguments.target else ()
    if len(targets) > 1:
        raise UsageError(f"--target {arguments.target}: a trace uses the arithmetic of one target; give one")
    if arguments.compute_precision and not targets:
        raise UsageError("--compute-precision needs --target; give both or none")
    target = open_target(targets[0], arguments.compute_precision) if targets else None
    resolved = resolve_arguments(arguments)
    from voxport.export.model import Model
    from voxport.export.verify.eager import EagerEngine
    from voxport.runtime.families import open_family
    from voxport.runtime.trace import read_inputs, write_outputs

    if target:
        check_recipes(target, resolved.recipes.values())
        model = Model(resolved, target.layout, target.compute_precision)
        engine = EagerEngine(model.components, model.module, target.layout, target.linear_kernel)
    else:
        model = Model(resolved, "BSHD")
        engine = EagerEngine(model.components, model.module, "BSHD")
    family = open_family(resolved.source.family.name)
    constants = resolved.constants
    inputs = read_inputs(arguments.inputs, family.trace.inputs(constants))
    check_writable(arguments.output)
    files = [resolved.source.folder / name for name in resolved.source.tokenizer_files]
    outputs = family.trace.run(engine, constants, inputs, arguments.live, files)
    write_outputs(arguments.output, outputs)
    shapes = {name: array.shape for name, array in outputs.items()}
    print(json.dumps(shapes) if arguments.json else arguments.output)
    return 0
