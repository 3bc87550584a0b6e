"""Measure what each part of a model loses when only that part is quantised as in a bundle."""

import argparse
import json
from pathlib import Path

from voxport.bundle.files import check_writable, write_whole
from voxport.bundle.manifest import Bundle
from voxport.export.commands.evaluate import add_evaluation_arguments
from voxport.export.commands.request import add_checkpoint_argument, open_source_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="folder of the bundle, whose recipe is used")
    add_checkpoint_argument(parser, "checkpoint the bundle was exported from")
    add_evaluation_arguments(parser, count=20)
    parser.add_argument("--layers", action="store_true", help="also each layer of each component alone")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE.json", help="write the rows as JSON")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON on stdout")


def run(arguments: argparse.Namespace) -> int:
    bundle = Bundle(arguments.bundle)
    if arguments.output:
        check_writable(arguments.output)
    bundle.check_hashes()
    from voxport.export.evaluation.result import sweep_table
    from voxport.export.evaluation.run import evaluation_options
    from voxport.export.evaluation.sweep import sweep
    from voxport.export.evaluation.utterances import HELD_OUT, read_utterances
    from voxport.export.targets import target_of_job
    from voxport.export.verify.manifest_check import check_manifest

    utterances = read_utterances(arguments.sentences or HELD_OUT, arguments.count)
    source, target = open_source_of(bundle.job, arguments), target_of_job(bundle.job)
    resolved = check_manifest(bundle, source, target)
    family = bundle.job.family
    options = evaluation_options(family, utterances, arguments.recogniser, arguments.voice)
    rows = sweep(bundle, resolved, target, options, arguments.layers)
    content = json.dumps(rows, indent=1) + "\n"
    if arguments.output:
        write_whole(arguments.output, content.encode())
    print(content.strip() if arguments.json else sweep_table(rows))
    return 0
