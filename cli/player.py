"""Plays a WAV with a program that is on PATH, or copies it to stdout."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from voxport.bundle.errors import UsageError, VoxportError

PROGRAMS = {  # and the arguments before the file
    "pw-play": (),
    "paplay": (),
    "aplay": ("-q",),
    "afplay": (),
    "ffplay": ("-nodisp", "-autoexit", "-loglevel", "error"),
}


def find_player() -> Callable[[Path], None]:
    """A function that plays a file, or raises VoxportError. Raises UsageError if there is no program."""
    for name, options in PROGRAMS.items():
        if program := shutil.which(name):
            return partial(_play, (program, *options))
    raise UsageError(
        "say: no output, and no player was found on this machine; write a file with -o hello.wav, "
        f"or install one of the programs {', '.join(PROGRAMS)}"
    )


@contextmanager
def delivered(deliver: Callable[[Path], None]) -> Iterator[Path]:
    """A WAV to write, which `deliver` gets at the end: then its header has its length."""
    with TemporaryDirectory(prefix="voxport-") as folder:
        yield (path := Path(folder, "speech.wav"))
        deliver(path)


def copy_to_stdout(path: Path) -> None:
    with path.open("rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _play(command: tuple[str, ...], path: Path) -> None:
    done = subprocess.run([*command, str(path)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip() or f"it ended with exit code {done.returncode}"
        raise VoxportError(
            f"{command[0]} cannot play: {said.splitlines()[0]}; write a file with -o hello.wav"
        )
