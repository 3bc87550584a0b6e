"""Where the transcripts of recordings go: stdout, a file, or a file for each recording in a folder."""

import argparse
import os
from pathlib import Path

from voxport.bundle.errors import UsageError
from voxport.bundle.files import check_writable
from voxport.runtime.audio.opening import check_exists

FORMATS = ("text", "srt", "vtt", "json")
TEXTS = (".txt", ".srt", ".vtt", ".json", ".md", ".text", "")  # extensions that no recording has


def format_of(arguments: argparse.Namespace) -> str:
    """The given format, or the one of the output's extension, else text."""
    ending = Path(arguments.transcripts or "").suffix[1:].lower()
    return arguments.format or (ending if ending in FORMATS else "text")


def transcript_files(arguments: argparse.Namespace) -> list[tuple[Path, Path | None]]:
    """Each recording and the file of its transcript; None is stdout. Makes the folder if it is missing.

    Several transcripts that are not text go to the current folder by default. Raises UsageError if a file
    cannot be written.
    """
    recordings, place = arguments.audio, arguments.transcripts
    is_one = len(recordings) == 1
    if is_one:
        check_exists(recordings[0])  # before a bundle is opened, or even exported
    elif Path("-") in recordings:
        raise UsageError("transcribe: - reads one recording from stdin; give it alone")
    if place == "-" or (place is None and (is_one or arguments.format == "text")):
        return [(recording, None) for recording in recordings]
    output = Path(place or "")
    if is_one and not output.is_dir() and not place.endswith(os.sep):
        if output.suffix.lower() not in TEXTS:
            names = " ".join(TEXTS).strip()
            raise UsageError(f"-o {output}: may be the name of a recording; end it in one of {names}")
        check_writable(output)
        return [(recordings[0], output)]
    files = _files_in(output, recordings, "txt" if arguments.format == "text" else arguments.format)
    if output.suffix and not output.is_dir():
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
    for stem, path in zip(stems, recordings, strict=True):
        if stems.count(stem) > 1:
            raise UsageError(f"{path}: another recording is called {stem} too; transcribe it alone")
    return [folder / f"{stem}.{extension}" for stem in stems]
