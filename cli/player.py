"""Plays sound, with the package sounddevice or a program that is on PATH, or copies it to stdout."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from voxport.bundle.errors import UsageError, VoxportError, first_line

PROGRAMS = {  # and the arguments before the file
    "pw-play": (),
    "paplay": (),
    "aplay": ("-q",),
    "afplay": (),
    "ffplay": ("-nodisp", "-autoexit", "-loglevel", "error"),
}
Player = Callable[[Path], None]


def find_player() -> Player:
    """Raises UsageError if this machine has none."""
    try:
        sounddevice = import_module("sounddevice")
        if any(row["max_output_channels"] for row in sounddevice.query_devices()):
            return partial(_play_on_device, sounddevice)
    except (ImportError, OSError):  # OSError: its library PortAudio is missing
        pass
    for name, options in PROGRAMS.items():
        if program := shutil.which(name):
            return partial(_play_with_program, (program, *options))
    raise UsageError(
        "say: no output, and no player was found on this machine; write a file with -o hello.wav, "
        "or install the package sounddevice or one of the programs " + ", ".join(PROGRAMS)
    )


@contextmanager
def played() -> Iterator[Path]:
    """A WAV to write, which is played at the end. Raises UsageError, or VoxportError if the player fails."""
    play = find_player()
    with TemporaryDirectory(prefix="voxport-") as folder:
        yield (path := Path(folder, "speech.wav"))
        play(path)


@contextmanager
def written_to_stdout() -> Iterator[Path]:
    """A WAV to write, which is copied to stdout at the end: its header has its length."""
    with TemporaryDirectory(prefix="voxport-") as folder:
        yield (path := Path(folder, "speech.wav"))
        with path.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        sys.stdout.buffer.flush()


def _play_on_device(sounddevice: Any, path: Path) -> None:
    import soundfile

    samples, rate = soundfile.read(path, dtype="float32")
    try:
        sounddevice.play(samples, rate, blocking=True)
    except sounddevice.PortAudioError as error:
        raise _not_played("sounddevice", first_line(error)) from None


def _play_with_program(command: tuple[str, ...], path: Path) -> None:
    done = subprocess.run([*command, str(path)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip() or f"it ended with exit code {done.returncode}"
        raise _not_played(command[0], said.splitlines()[0])


def _not_played(name: str, reason: str) -> VoxportError:
    return VoxportError(f"{name} cannot play: {reason}; write a file with -o hello.wav")
