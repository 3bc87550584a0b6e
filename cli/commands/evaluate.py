"""Measure how well a bundle speaks or transcribes: word error rate, codes and sound beside full precision."""

import argparse
import json
from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.bundle.files import write_whole
from voxport.bundle.manifest import Bundle
from voxport.bundle.names import HubName
from voxport.cli.arguments import add_bundle, add_json, add_output, integer
from voxport.cli.checkpoint import add_checkpoint_argument
from voxport.cli.preflight import check_alone, check_beside_checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bundle(parser)
    add_checkpoint_argument(parser, "checkpoint the bundle was exported from")
    add_evaluation_arguments(parser)
    parser.add_argument(
        "--readings",
        type=integer(1),
        default=1,
        metavar="N",
        help="speak each sentence N times, with other random numbers: the standard error of the word error "
        "rate falls (default: %(default)s)",
    )
    parser.add_argument(
        "--alone", action="store_true", help="do not compare with full precision; needs no checkpoint"
    )
    add_output(parser, "FILE.json", "write a row for each sentence")
    add_json(parser)


def add_evaluation_arguments(parser: argparse.ArgumentParser, count: int = 100) -> None:
    """The sentences, and the model that speaks or transcribes them."""
    parser.add_argument(
        "--sentences",
        type=Path,
        metavar="PATH",
        help="text file with a sentence per line, or folder with files *.trans.txt (lines: ID TEXT) and "
        "recordings ID.flac (or wav, opus, ogg, mp3), as LibriSpeech "
        "(default: held-out sentences of the embedded models)",
    )
    parser.add_argument(
        "--count", type=integer(1), default=count, metavar="N", help="sentences to use (default: %(default)s)"
    )
    parser.add_argument(
        "--recogniser",
        type=lambda text: HubName.parse(text) or text,
        metavar="BUNDLE",
        help="bundle for speech to text that transcribes the speech, or whisper for an independent model "
        "(default: the embedded model)",
    )
    parser.add_argument(
        "--voice", metavar="NAME", help="voice that speaks (default: the default of the bundle)"
    )


def _bundle(arguments: argparse.Namespace) -> Bundle:
    """Raises UsageError on an aligner, before a checkpoint is asked for."""
    from voxport.runtime.forced_alignment import ForcedAlignment
    from voxport.runtime.opening import task_of

    bundle = Bundle(arguments.bundle)
    if task_of(bundle) is ForcedAlignment:
        raise UsageError(f"{bundle.folder}: an aligner gives times to words, which no error rate judges")
    return bundle


def run(arguments: argparse.Namespace) -> int:
    bundle = _bundle(arguments)
    if arguments.alone and arguments.checkpoint:
        raise UsageError("evaluate: --alone uses no checkpoint; leave one of the two out", field="alone")
    from voxport.export.evaluation.figures import summary
    from voxport.export.evaluation.run import evaluate, evaluation_options
    from voxport.export.evaluation.sentences import HELD_OUT, read_sentences
    from voxport.export.targets import target_of_job

    sentences = read_sentences(arguments.sentences or HELD_OUT, arguments.count)
    if arguments.alone:
        check_alone(bundle)
        target, resolved = target_of_job(bundle.job), None
    else:
        resolved, target = check_beside_checkpoint(bundle, arguments)
    options = evaluation_options(
        bundle.job.family, sentences, arguments.recogniser, arguments.voice, arguments.readings
    )
    found = evaluate(bundle, resolved, target, options)
    if arguments.output:
        write_whole(arguments.output, found.as_json().encode())
    print(found.as_json().strip() if arguments.json else summary(found))
    return 0


class Sweep:
    """Measure what each part of a model loses when only that part is quantised as in a bundle."""

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        add_bundle(parser)
        add_checkpoint_argument(parser, "checkpoint the bundle was exported from")
        add_evaluation_arguments(parser, count=20)
        parser.add_argument("--layers", action="store_true", help="also each layer of each component alone")
        add_output(parser, "FILE.json", "write the rows as JSON")
        add_json(parser, "the rows")

    @staticmethod
    def run(arguments: argparse.Namespace) -> int:
        bundle = _bundle(arguments)
        from voxport.export.evaluation.figures import sweep_table
        from voxport.export.evaluation.run import evaluation_options
        from voxport.export.evaluation.sentences import HELD_OUT, read_sentences
        from voxport.export.evaluation.sweep import sweep

        sentences = read_sentences(arguments.sentences or HELD_OUT, arguments.count)
        resolved, target = check_beside_checkpoint(bundle, arguments)
        family = bundle.job.family
        options = evaluation_options(family, sentences, arguments.recogniser, arguments.voice)
        rows = sweep(bundle, resolved, target, options, arguments.layers)
        content = json.dumps(rows, indent=1) + "\n"
        if arguments.output:
            write_whole(arguments.output, content.encode())
        print(content.strip() if arguments.json else sweep_table(rows))
        return 0
