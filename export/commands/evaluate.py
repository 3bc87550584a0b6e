"""Measure how well a bundle speaks or transcribes: word error rate, codes and sound beside full precision."""

import argparse
import logging
from pathlib import Path

from voxport.bundle.command import integer
from voxport.bundle.errors import UsageError
from voxport.bundle.files import check_writable, write_whole
from voxport.bundle.manifest import Bundle
from voxport.export.commands.request import add_checkpoint_argument, open_source_of
from voxport.runtime.engines.trial import trial_run

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, help="folder of the bundle")
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
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE.json", help="write a row for each sentence"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def add_evaluation_arguments(parser: argparse.ArgumentParser, count: int = 100) -> None:
    """What is spoken or transcribed, and by which model."""
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
        metavar="BUNDLE",
        help="bundle for speech to text that transcribes the speech, or whisper for an independent model "
        "(default: the embedded model)",
    )
    parser.add_argument("--voice", metavar="NAME", help="voice that speaks (default: that of the bundle)")


def run(arguments: argparse.Namespace) -> int:
    bundle = Bundle(arguments.bundle)
    if arguments.output:
        check_writable(arguments.output)
    if arguments.alone and arguments.checkpoint:
        raise UsageError("evaluate: --alone uses no checkpoint; leave one of the two out", field="alone")
    bundle.check_hashes()
    from voxport.export.evaluation.result import summary
    from voxport.export.evaluation.run import evaluate, evaluation_options
    from voxport.export.evaluation.utterances import HELD_OUT, read_utterances
    from voxport.export.targets import target_of_job
    from voxport.export.verify.manifest_check import check_manifest

    utterances = read_utterances(arguments.sentences or HELD_OUT, arguments.count)
    target, resolved = target_of_job(bundle.job), None
    if not arguments.alone:
        source = open_source_of(bundle.job, arguments)
        resolved = check_manifest(bundle, source, target)
    trial_run(bundle)
    if not bundle.is_verified:
        log.warning("%s: this bundle is %s", bundle.folder, bundle.manifest.verification.status)
    options = evaluation_options(
        bundle.job.family, utterances, arguments.recogniser, arguments.voice, arguments.readings
    )
    found = evaluate(bundle, resolved, target, options)
    if arguments.output:
        write_whole(arguments.output, found.as_json().encode())
    print(found.as_json().strip() if arguments.json else summary(found))
    return 0
