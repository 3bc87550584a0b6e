"""Measure the speed of a bundle: time of each component and frame, and model bandwidth utilisation."""

import argparse
import json
import sys
from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.cli.arguments import add_bundle, add_engine_arguments, add_json, engine_options, integer

PROMPT_TOKENS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_bundle(parser)
    parser.add_argument(
        "--frames",
        type=integer(1),
        default=50,
        metavar="N",
        help="number of frames of 80 ms to time, or of recordings of one window (default: 50)",
    )
    parser.add_argument(
        "--prompt-tokens",
        type=integer(1),
        metavar="N",
        help=f"text to speech: number of text tokens in the prompt (default: {PROMPT_TOKENS})",
    )
    parser.add_argument(
        "--streams",
        type=_counts,
        default=(),
        metavar="N,...",
        help="text to speech: also time N utterances in one batch (ONNX, up to 8)",
    )
    parser.add_argument(
        "--against",
        type=Path,
        nargs="+",
        default=[],
        metavar="RUN.json",
        help="also print this run beside stored ones, which --json wrote",
    )
    add_engine_arguments(parser)
    add_json(parser, "all figures")


def _counts(text: str) -> tuple[int, ...]:
    """`1,2,4` -> its numbers."""
    if not all(part.isascii() and part.isdecimal() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"{text!r}: expected numbers like 1,2,4")
    return tuple(int(part) for part in text.split(","))


def run(arguments: argparse.Namespace) -> int:
    from voxport.runtime.bench import bench, bench_text
    from voxport.runtime.bench_against import against_text, read_runs
    from voxport.runtime.families import open_family

    family = Bundle(arguments.bundle).job.family
    for name in ("streams", "prompt_tokens"):  # each is for some families
        if getattr(arguments, name) and name not in open_family(family).bench.options:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"bench: {flag} does not apply to a bundle of {family}; leave it out")
    runs = read_runs(arguments.against)
    result = bench(
        arguments.bundle,
        engine_options(arguments),
        arguments.frames,
        arguments.prompt_tokens or PROMPT_TOKENS,
        arguments.streams,
    )
    print(json.dumps(result, indent=1) if arguments.json else bench_text(result))
    if runs:
        print(against_text(result, runs), file=sys.stderr if arguments.json else sys.stdout)
    return 0
