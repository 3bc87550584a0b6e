"""Make a voice: from a recording, from a voice of another program, or from other voices."""

from __future__ import annotations

import argparse
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from voxport.bundle.errors import UsageError
from voxport.bundle.files import check_writable, write_whole
from voxport.bundle.names import find_name
from voxport.cli.arguments import add_output, add_task_arguments, engine_options, open_task

if TYPE_CHECKING:
    from voxport.runtime.text_to_speech import TextToSpeech

NAME = re.compile(r"[\w][\w.-]{0,63}")
ADD, IMPORT, BLEND = "add", "import", "blend"
log = logging.getLogger(__name__)


def voice_name(text: str) -> str:
    """For argparse: letters, digits, `_`, `-` and `.`."""
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected at most 64 letters, digits, - and _")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=[ADD, IMPORT, BLEND],
        help="add: from a recording; import: from a voice of another program; blend: from other voices",
    )
    parser.add_argument("name", type=voice_name, help="name of the voice, for `say --voice NAME`")
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="add: audio file with 1 to 30 seconds of one speaker, 3 to 15 are best. import: a .pt of the "
        "official demo, or a vector as .npy or .safetensors. blend: VOICE=WEIGHT of two or more voices, as "
        "in anna=0.7 ben=0.3; the weights are divided by their sum",
    )
    transcript = parser.add_mutually_exclusive_group()
    transcript.add_argument(
        "--transcript",
        metavar="TEXT",
        help="add: what is said in the recording; speech then continues it, which is nearer to the speaker",
    )
    transcript.add_argument(
        "--transcribe-with",
        type=Path,
        metavar="DIR",
        help="add: folder of a speech-to-text bundle that writes the transcript",
    )
    place = "file of the voice, .safetensors (default: the user's folder of voices, where say finds it)"
    add_output(parser, "FILE", place)
    parser.add_argument("--replace", action="store_true", help="replace a voice of this name or a file")
    add_task_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    from voxport.runtime.text_to_speech import TextToSpeech

    if arguments.output and arguments.output.suffix != ".safetensors":
        raise UsageError(f"{arguments.output}: expected a name that ends in .safetensors")
    if arguments.action != ADD and (arguments.transcript is not None or arguments.transcribe_with):
        flags = "--transcript and --transcribe-with are"
        raise UsageError(f"voice {arguments.action}: {flags} for voice add; leave them out")
    if arguments.action != BLEND and len(arguments.sources) > 1:
        raise UsageError(f"voice {arguments.action}: expected one file, got {len(arguments.sources)}")
    weights = _weights(arguments.sources) if arguments.action == BLEND else {}
    task = open_task(TextToSpeech, arguments)
    path = arguments.output or task.voice_path(arguments.name)
    own, name = task.bundle_voices(), arguments.name
    if not arguments.output and find_name(name, own) in own:
        raise UsageError(f"name {name}: the bundle has this voice; choose another name", field="name")
    stored = find_name(path.name, os.listdir(path.parent) if path.parent.is_dir() else [])
    if os.path.lexists(path.parent / stored) and not (arguments.replace and path.exists()):
        raise UsageError(
            f"replace: {path.parent / stored} exists; choose another name, or replace it", field="replace"
        )
    check_writable(path)
    write_whole(path, _content(task, arguments, weights))
    print(path)
    return 0


def _content(task: TextToSpeech, arguments: argparse.Namespace, weights: dict[str, float]) -> bytes:
    if arguments.action == BLEND:
        return task.blend_voices(weights)
    source = Path(arguments.sources[0])
    if arguments.action == IMPORT:
        return task.import_voice(source)
    if arguments.transcribe_with is None:
        return task.make_voice(source, arguments.transcript)
    task.make_voice(source)  # refuses a recording before it is transcribed
    return task.make_voice(source, _transcribed(source, arguments))


def _transcribed(recording: Path, arguments: argparse.Namespace) -> str:
    """The transcript by a bundle of the user, which is logged. Raises UsageError if there is no speech."""
    from voxport.runtime.audio.gain import amplified, recording_gain_db
    from voxport.runtime.audio.sources import Recording
    from voxport.runtime.opening import open_task
    from voxport.runtime.speech_to_text import SpeechToText

    options, check = engine_options(arguments), not arguments.no_check
    task = open_task(SpeechToText, arguments.transcribe_with, options, check)
    source = Recording(recording, task.sample_rate)
    blocks = amplified(source.blocks(), recording_gain_db("auto", source.peak_dbfs()), is_auto=True)
    text = "".join(delta.text for delta in task.transcribe(blocks)).strip()
    if not text:
        raise UsageError(f"{recording}: no speech was recognised; write its transcript", field="transcript")
    log.info("transcript: %s; if a word is wrong, give the right one with --transcript and --replace", text)
    return text


def _weights(texts: list[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in texts:
        name, separator, weight = text.rpartition("=")
        try:
            value = float(weight) if separator and name else None
        except ValueError:
            value = None
        if value is None:
            raise UsageError(f"voice blend: {text}: expected VOICE=WEIGHT, as in anna=0.7")
        if name in found:
            raise UsageError(f"voice blend: {name} comes twice; name each voice once")
        found[name] = value
    return found
