"""Where the transcripts of recordings go: stdout, a file, or a file for each recording in a folder."""

import argparse
import os
from contextlib import suppress
from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.bundle.files import check_writable
from voxport.runtime.audio.captions import CAPTIONS
from voxport.runtime.audio.files import SOUNDS
from voxport.runtime.audio.opening import check_exists

FORMATS = ("text", "json", *CAPTIONS)
EXTENSIONS = {"text": "txt", "textgrid": "TextGrid"}  # of files in a folder, if they differ from the format
RECORDINGS = SOUNDS | {".aif", ".aiff", ".au", ".avi", ".caf", ".m4b", ".mka", ".mkv", ".oga", ".w64", ".wma"}


def format_of(arguments: argparse.Namespace) -> str:
    """The given format, or the one of the output's extension, else text."""
    ending = Path(arguments.transcripts or "").suffix[1:].lower()
    return arguments.format or (ending if ending in FORMATS else "text")


def transcript_files(arguments: argparse.Namespace) -> list[tuple[Path, Path | None]]:
    """Each recording and the file of its transcript; None is stdout. Makes the folder if it is missing.

    Several transcripts that are not text go to the current folder by default. A recording that is named twice
    is transcribed once. Raises UsageError if a file cannot be written, or no recording exists.
    """
    recordings, place = list(dict.fromkeys(arguments.audio)), arguments.transcripts
    is_one = len(recordings) == 1
    for recording in recordings:  # before a bundle is opened, or even exported
        with suppress(UsageError):
            check_exists(recording)
            break
    else:
        check_exists(recordings[0])
    if len(arguments.audio) > 1 and Path("-") in recordings:
        raise UsageError("transcribe: - reads one recording from stdin; give it alone")
    if place == "-" and not is_one and arguments.format in CAPTIONS:
        raise UsageError(f"-o -: {arguments.format} is for one recording a file; give -o DIR")
    if place == "-" or (place is None and (is_one or arguments.format == "text")):
        return [(recording, None) for recording in recordings]
    output = Path(place or "")
    is_folder = output.is_dir() or place.endswith(os.sep)
    if is_one and not is_folder:
        if output.suffix.lower() in RECORDINGS:
            raise UsageError(f"-o {output}: may be the name of a recording; end it in .txt or another way")
        check_writable(output)
        return [(recordings[0], output)]
    files = _files_in(output, recordings, EXTENSIONS.get(arguments.format, arguments.format))
    if output.suffix and not is_folder:
        raise UsageError(f"-o {output}: one file for {len(recordings)} recordings; name a folder, as in -o .")
    output.mkdir(parents=True, exist_ok=True)
    for file in files:
        check_writable(file)
    return list(zip(recordings, files, strict=True))


def _files_in(folder: Path, recordings: list[Path], extension: str) -> list[Path]:
    """`talk.txt` for `talk.wav`, but `talk.wav.txt` if another recording has the same stem."""
    stems = ["stdin" if path == Path("-") else path.stem for path in recordings]
    if len(set(stems)) < len(stems):
        stems = [path.name for path in recordings]
    for index, stem in enumerate(stems):
        if stem in stems[:index]:
            same = f"{recordings[stems.index(stem)]} and {recordings[index]}"
            raise UsageError(f"{same} have the same name; transcribe them apart, each with -o DIR of its own")
    return [folder / f"{stem}.{extension}" for stem in stems]
