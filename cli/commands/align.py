"""Find the times of the words of a text that is spoken in a recording."""

import argparse
import logging
import sys
from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.bundle.files import write_whole
from voxport.cli.arguments import add_task_arguments, open_task
from voxport.runtime.audio.captions import CAPTIONS, as_json
from voxport.runtime.audio.sources import Recording
from voxport.runtime.text.languages import AUTO, check_language

FORMATS = ("json", *CAPTIONS)
log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(takes_stdout=True)
    parser.add_argument("audio", type=Path, help="an audio file of any rate and number of channels")
    parser.add_argument(
        "--text", type=Path, required=True, metavar="FILE", help="what is said, in UTF-8; - is stdin"
    )
    parser.add_argument(
        "--language",
        metavar="CODE",
        default=AUTO,
        help="the language of the text, by its code or English name; it decides what a word is (default: "
        "words end at white space)",
    )
    parser.add_argument("--format", choices=FORMATS, help="(default: by the extension of FILE, else json)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file to write (default: stdout)")
    add_task_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    import numpy as np

    from voxport.runtime.forced_alignment import ForcedAlignment

    if arguments.text == arguments.audio == Path("-"):
        raise UsageError("align: text and sound are both stdin; give a file for one of them")
    style, text, code = _format(arguments), _read(arguments.text), check_language(arguments.language) or ""
    aligner = open_task(ForcedAlignment, arguments)
    source = Recording(arguments.audio, aligner.sample_rate)
    source.check_whole()
    samples = np.concatenate([np.zeros(0, np.float32), *source.blocks()])
    found = aligner.align(samples, text, code)
    if not found.words:
        log.warning("%s: has no word, so there are no times", arguments.text)
    elif found.doubt:
        log.warning("%s", found.doubt)
    if style in CAPTIONS:
        content = CAPTIONS[style](found.words, source.seconds)
    else:
        confidence = round(found.confidence, 3)
        content = as_json(text.strip(), found.words, seconds=source.seconds, confidence=confidence)
    if arguments.output in (None, Path("-")):
        sys.stdout.write(content)
    else:
        write_whole(arguments.output, content.encode())
        print(arguments.output)
    return 0


def _format(arguments: argparse.Namespace) -> str:
    """The given format, or the one of the output's extension. Raises UsageError on an unknown one."""
    ending = arguments.output.suffix[1:].lower() if arguments.output else ""
    if not arguments.format and ending not in ("", *FORMATS):
        known = ", ".join(FORMATS)
        raise UsageError(f"-o {arguments.output}: expected the extension {known}; or give --format")
    return str(arguments.format or ending or FORMATS[0])


def _read(path: Path) -> str:
    try:
        content = sys.stdin.buffer.read() if path == Path("-") else path.read_bytes()
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise UsageError(f"{path}: {reason}; expected a text file", field="text") from None
