"""Make a voice from a recording."""

import argparse
import re
from pathlib import Path

from bundle.errors import UsageError
from bundle.files import check_writable, write_whole
from runtime.commands import add_task_arguments, engine_options

NAME = re.compile(r"[\w][\w.-]{0,63}")


def voice_name(text: str) -> str:
    """For argparse: letters, digits, `_`, `-` and `.`."""
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected at most 64 letters, digits, - and _")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["add"], help="add: make a voice from a recording")
    parser.add_argument("name", type=voice_name, help="name of the voice, for `say --voice NAME`")
    parser.add_argument("recording", type=Path, help="audio file with 3 to 30 seconds of one speaker")
    parser.add_argument(
        "--transcript",
        metavar="TEXT",
        help="what is said in the recording; speech then continues it, which is nearer to the speaker",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file of the voice, .safetensors (default: the user's folder of voices, where say finds it)",
    )
    add_task_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from runtime.opening import open_task
    from runtime.text_to_speech import TextToSpeech

    if arguments.output and arguments.output.suffix != ".safetensors":
        raise UsageError(f"{arguments.output}: expected a name that ends in .safetensors")
    task = open_task(TextToSpeech, arguments.bundle, engine_options(arguments), not arguments.no_check)
    path = arguments.output or task.voice_path(arguments.name)
    check_writable(path)
    write_whole(path, task.make_voice(arguments.recording, arguments.transcript))
    print(path)
    return 0
