"""Make a voice from a recording, a voice of another program or other voices; list and remove voices."""

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
from voxport.cli.arguments import add_output, add_task_arguments, engine_options, folder, open_task

if TYPE_CHECKING:
    from voxport.runtime.text_to_speech import TextToSpeech

NAME = re.compile(r"[\w][\w.-]{0,63}")
ADD, IMPORT, BLEND, LIST, REMOVE = "add", "import", "blend", "list", "remove"
log = logging.getLogger(__name__)


def voice_name(text: str) -> str:
    """For argparse: letters, digits, `_`, `-` and `.`."""
    if not NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected at most 64 letters, digits, - and _")
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=[ADD, IMPORT, BLEND, LIST, REMOVE],
        help="add: from a recording; import: from a voice of another program; blend: from other voices; "
        "list: the voices of a bundle, else those of the installed model and your own; remove: delete one of "
        "your own",
    )
    parser.add_argument("name", nargs="?", type=voice_name, help="name of the voice, for `say --voice NAME`")
    parser.add_argument(
        "sources",
        nargs="*",
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
        type=folder,
        metavar="DIR",
        help="add: folder of a speech-to-text bundle that writes the transcript",
    )
    place = "file of the voice, .safetensors (default: the user's folder of voices, where say finds it)"
    add_output(parser, "FILE", place)
    parser.add_argument("--replace", action="store_true", help="replace a voice of this name or a file")
    add_task_arguments(parser, required=False)


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == LIST:
        return _list(arguments)
    print(_removed(arguments) if arguments.action == REMOVE else _made(arguments))
    return 0


def check_arguments(arguments: argparse.Namespace) -> None:
    """Raises UsageError on arguments that the action does not have, or lacks."""
    action, makes = arguments.action, arguments.action in (ADD, IMPORT, BLEND)
    expected = {LIST: "no name", REMOVE: "the name of a voice"}.get(action, "a name, and then a SOURCE")
    if (action == LIST) != (arguments.name is None) or makes != bool(arguments.sources):
        raise UsageError(f"voice {action}: expected {expected}")
    if makes and not arguments.bundle:
        raise UsageError("bundle: a voice is made by a model; give the folder of a bundle", field="bundle")
    if not makes and (arguments.output or arguments.replace):
        raise UsageError(f"voice {action}: makes no voice; leave -o and --replace out")
    if arguments.output and arguments.output.suffix != ".safetensors":
        raise UsageError(f"{arguments.output}: expected a name that ends in .safetensors")
    if action != ADD and (arguments.transcript is not None or arguments.transcribe_with):
        raise UsageError(
            f"voice {action}: --transcript and --transcribe-with are for voice add; leave them out"
        )
    if action != BLEND and len(arguments.sources) > 1:
        raise UsageError(f"voice {action}: expected one file, got {len(arguments.sources)}")


def _list(arguments: argparse.Namespace) -> int:
    from voxport.runtime.families.qwen3_tts.voices import user_voice_files
    from voxport.runtime.opening import packaged_bundle
    from voxport.runtime.text_to_speech import TextToSpeech

    if bundle := arguments.bundle or packaged_bundle(TextToSpeech):
        for name, count in _rows(bundle).items():
            print(f"{name:<16} {count} rows")
    for path in () if arguments.bundle else user_voice_files():
        print(f"{path.stem:<16} {path}")
    if not bundle:
        log.info("your own voices; --bundle lists the voices of a bundle")
    return 0


def _rows(place: Path) -> dict[str, int]:
    """The number of rows of each voice of a bundle. Raises UsageError if it has no voices."""
    from voxport.bundle.manifest import Bundle
    from voxport.runtime.families import open_family
    from voxport.runtime.text_to_speech import TextToSpeech

    bundle = Bundle(place)
    family = open_family(bundle.job.family)
    if rows := family.voices(bundle):
        return rows
    is_speech = issubclass(family.task, TextToSpeech)
    remedy = "give `say` a voice file with --voice" if is_speech else "it transcribes and needs none"
    raise UsageError(f"{bundle.folder}: has no voices; {remedy}")


def _removed(arguments: argparse.Namespace) -> Path:
    """Deletes a voice of the user. Raises UsageError unless exactly one has this name."""
    from voxport.bundle.manifest import Bundle
    from voxport.runtime.families.qwen3_tts.voices import user_voice_files

    files = user_voice_files(Bundle(arguments.bundle) if arguments.bundle else None)
    name = find_name(arguments.name, {path.stem for path in files})
    found = [path for path in files if path.stem == name]
    if len(found) > 1:
        reason = "voices for several models have this name; give the bundle of one of them"
        raise UsageError(f"bundle: {reason}", field="bundle")
    if not found:
        known = ", ".join(sorted({path.stem for path in files})) or "none"
        raise UsageError(f"name {name}: is no voice that you made; there are: {known}", field="name")
    found[0].unlink()
    return found[0]


def _made(arguments: argparse.Namespace) -> Path:
    from voxport.runtime.text_to_speech import TextToSpeech

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
    return path


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
