"""Run eager PyTorch on given inputs and write every intermediate value as .npz."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from bundle.errors import UsageError
from bundle.files import check_writable
from export.commands.request import add_request_arguments, check_names, export_request, open_source
from export.targets import TARGETS, check_recipes, open_target, parse_targets
from runtime.commands.trace import add_trace_arguments

if TYPE_CHECKING:
    from export.resolve import Resolved
    from export.targets.base import Target
    from export.verify.eager import EagerEngine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_request_arguments(parser)
    target = f"activation arithmetic of a quantised model: that of {', '.join(TARGETS)} (default: floats)"
    parser.add_argument("--target", metavar="TARGET", help=target)
    add_trace_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    targets = parse_targets(arguments.target) if arguments.target else ()
    if len(targets) > 1:
        raise UsageError(f"--target {arguments.target}: a trace uses the arithmetic of one target; give one")
    if arguments.compute_precision and not targets:
        raise UsageError("--compute-precision needs --target; give both or none")
    target = open_target(targets[0], arguments.compute_precision) if targets else None
    check_names(arguments)
    from export.job import eager_job
    from export.resolve import resolve
    from runtime.families import open_family
    from runtime.trace import read_inputs, write_outputs

    source = open_source(arguments.checkpoint, arguments.model)
    resolved = resolve(source, export_request(arguments, source.family.name))
    engine = _eager_engine(resolved, target)
    family = open_family(source.family.name)
    constants = family.parse_constants(eager_job(resolved))
    inputs = read_inputs(arguments.inputs, family.trace.inputs(constants))
    check_writable(arguments.output)
    outputs = family.trace.run(engine, constants, inputs, arguments.live)
    write_outputs(arguments.output, outputs)
    shapes = {name: array.shape for name, array in outputs.items()}
    print(json.dumps(shapes) if arguments.json else arguments.output)
    return 0


def _eager_engine(resolved: Resolved, target: Target | None) -> EagerEngine:
    """Eager PyTorch with the arithmetic of `target`, or in floats."""
    from export.model import Model
    from export.verify.eager import EagerEngine
    from quantize.modules import float_activations

    if target is None:
        model = Model(resolved, "BSHD")
        return EagerEngine(model.components, model.module, "BSHD", float_activations)
    check_recipes(target, resolved.recipes.values())
    model = Model(resolved, target.layout, target.compute_precision)
    return EagerEngine(model.components, model.module, target.layout, target.linear_kernel)
