"""The commands of `python -m runtime`, and the arguments of every command that opens an engine."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.command import EXAMPLE_BUNDLE, Command, integer
from voxport.runtime.engine_options import ENGINE_OPTIONS

if TYPE_CHECKING:
    from voxport.runtime.engines.base import EngineOptions

COMMANDS = (
    Command(
        "say",
        "speak a text",
        "voxport.runtime.commands.say",
        example=f'"Hello there." --bundle {EXAMPLE_BUNDLE} -o hello.wav',
    ),
    Command(
        "transcribe",
        "transcribe a recording or live audio",
        "voxport.runtime.commands.transcribe",
        example="talk.flac --bundle artifacts/voxtral-realtime-tiny-onnx-8da4w -o talk.srt",
    ),
    Command(
        "voice",
        "make a voice from a recording or from other voices",
        "voxport.runtime.commands.voice",
        example="add anna anna.wav --bundle artifacts/qwen3-tts-tiny-onnx-w8",
    ),
    Command(
        "codec",
        "turn recordings into codes, and codes into recordings",
        "voxport.runtime.commands.codec",
        example="encode speech.wav codes.npz --bundle artifacts/qwen3-tts-tiny-onnx-w8",
    ),
    Command(
        "serve",
        "serve bundles over HTTP and WebSockets",
        "voxport.runtime.commands.serve",
        example=f"--bundle {EXAMPLE_BUNDLE} --port 8000",
    ),
    Command(
        "voices", "list the voices of a bundle", "voxport.runtime.commands.voices", example=EXAMPLE_BUNDLE
    ),
    Command(
        "info",
        "show what a bundle holds and how it was verified",
        "voxport.runtime.commands.info",
        example=EXAMPLE_BUNDLE,
    ),
    Command(
        "bench",
        "measure the speed of a bundle",
        "voxport.runtime.commands.bench",
        example=f"{EXAMPLE_BUNDLE} --frames 20 --threads 2",
    ),
    Command(
        "trace",
        "write all intermediate values of a bundle's run",
        "voxport.runtime.commands.trace",
        example=f"{EXAMPLE_BUNDLE} --inputs inputs.npz -o bundle.npz",
    ),
    Command(
        "mil",
        "show the contents of a Core ML package",
        "voxport.runtime.commands.mil",
        example="artifacts/voxtral-tts-tiny-coreml-w8/codec.mlpackage",
    ),
)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--threads",
        type=integer(1),
        metavar="N",
        help="number of threads the engine uses (default: all cores, or 1 for a small model)",
    )
    add_engine_options(parser)


def add_engine_options(parser: argparse.ArgumentParser, **defaults: str) -> None:
    """Arguments of `ENGINE_OPTIONS`. `defaults` say what a command does without one, where it differs."""
    for name, option in ENGINE_OPTIONS.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            choices=option.choices,
            help=f"{option.help} (default: {defaults.get(name, option.default)})",
        )


def engine_options(arguments: argparse.Namespace) -> "EngineOptions":
    """`threads` is None for a command without that argument."""
    from voxport.runtime.engines.base import EngineOptions  # imports numpy

    chosen = {name: getattr(arguments, name) for name in ENGINE_OPTIONS}
    return EngineOptions(getattr(arguments, "threads", None), **chosen)


def add_task_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the commands that run a task from a bundle."""
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="folder of the bundle")
    parser.add_argument(
        "--no-check",
        action="store_true",
        help="skip the comparison of the bundle's files with their hashes, which reads each of them once",
    )
    add_engine_arguments(parser)
