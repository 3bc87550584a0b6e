"""Turn a recording into the codes of a model's codec, and codes into a recording."""

from __future__ import annotations

import argparse
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.errors import UsageError
from voxport.cli.arguments import add_task_arguments, open_task

if TYPE_CHECKING:
    from voxport.runtime.text_to_speech import TextToSpeech

ENCODE, DECODE = "encode", "decode"
log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", choices=[ENCODE, DECODE], help="encode: recording to codes; decode: codes to recording"
    )
    parser.add_argument(
        "input",
        type=Path,
        help="encode: a recording of at most 30 s; decode: an .npz that encode wrote, with codes int64 "
        "[frames, codes of a frame] and sample_rate, or an .npy of codes alone",
    )
    parser.add_argument(
        "output",
        type=Path,
        help="file to write, through links; encode: an .npz; decode: one of .wav .flac .mp3 .ogg .opus .pcm",
    )
    add_task_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from voxport.runtime.audio.files import check_format
    from voxport.runtime.text_to_speech import TextToSpeech

    if arguments.action == DECODE:
        check_format(arguments.output)
    elif arguments.output.suffix != ".npz":
        raise UsageError(f"{arguments.output}: expected a name that ends in .npz")
    task = open_task(TextToSpeech, arguments)
    work = _encode if arguments.action == ENCODE else _decode
    work(task, arguments.input, arguments.output)
    print(arguments.output)
    return 0


def _encode(task: TextToSpeech, recording: Path, output: Path) -> None:
    from voxport.runtime.codes import write_codes

    codes = task.encode(recording)
    write_codes(output, codes, task.sample_rate)
    log.info("%d frames of %d codes", *codes.shape)


def _decode(task: TextToSpeech, path: Path, output: Path) -> None:
    from voxport.runtime.audio.files import write_audio
    from voxport.runtime.codes import read_codes

    samples = task.decode(read_codes(path, task.code_sizes(), task.sample_rate))
    write_audio(output, samples, task.sample_rate)
    log.info("%.2f s of speech", len(samples) / task.sample_rate)
