"""Measure what each part of a model loses when only that part is quantised as in a bundle."""

import argparse
import json

from voxport.bundle.files import write_whole
from voxport.bundle.manifest import Bundle
from voxport.cli.arguments import add_bundle, add_json, add_output
from voxport.cli.checkpoint import add_checkpoint_argument
from voxport.cli.commands.evaluate import add_evaluation_arguments
from voxport.cli.preflight import check_beside_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bundle(parser)
    add_checkpoint_argument(parser, "checkpoint the bundle was exported from")
    add_evaluation_arguments(parser, count=20)
    parser.add_argument("--layers", action="store_true", help="also each layer of each component alone")
    add_output(parser, "FILE.json", "write the rows as JSON")
    add_json(parser, "the rows")


def run(arguments: argparse.Namespace) -> int:
    bundle = Bundle(arguments.bundle)
    from voxport.export.evaluation.figures import sweep_table
    from voxport.export.evaluation.run import evaluation_options
    from voxport.export.evaluation.sweep import sweep
    from voxport.export.evaluation.utterances import HELD_OUT, read_utterances

    utterances = read_utterances(arguments.sentences or HELD_OUT, arguments.count)
    resolved, target = check_beside_checkpoint(bundle, arguments)
    family = bundle.job.family
    options = evaluation_options(family, utterances, arguments.recogniser, arguments.voice)
    rows = sweep(bundle, resolved, target, options, arguments.layers)
    content = json.dumps(rows, indent=1) + "\n"
    if arguments.output:
        write_whole(arguments.output, content.encode())
    print(content.strip() if arguments.json else sweep_table(rows))
    return 0
