"""Recordings that libsndfile does not read, decoded by FFmpeg in a process of its own."""

import json
import subprocess
import sys
import weakref
from pathlib import Path
from typing import IO

import numpy as np

DECODER = Path(__file__).with_name("media_decoder.py")
FAULTY = 3  # its exit code if standard error has a reason
MAX_HEADER_BYTES = 200
SAMPLE_BYTES = 4


class DamagedSound(Exception):
    """What is wrong with a recording, as an adjective."""


class MediaFile:
    """The first audio track of a file. `seconds`: its length by its header; None if unknown.

    A fault of a decoder ends the child process only. It decodes as fast as blocks are read, and has limits of
    memory and time. It ends when this object is closed or forgotten.
    """

    def __init__(self, source: IO[bytes]):
        """Moves the position in `source`. Raises DamagedSound if there are no samples."""
        command, pipe = (sys.executable, "-P", str(DECODER)), subprocess.PIPE
        self._child = subprocess.Popen(command, stdin=source, stdout=pipe, stderr=pipe)
        assert self._child.stdout
        self._samples = self._child.stdout
        self._end = weakref.finalize(self, _end, self._child)
        header = self._samples.readline(MAX_HEADER_BYTES)
        if not header:
            raise DamagedSound(self._reason() or "damaged")
        self.samplerate, self.channels, self.seconds = json.loads(header)

    def read_block(self, frames: int) -> np.ndarray:
        """At most `frames` frames, float32 [n, channels]; [0, channels] at the end.

        Raises DamagedSound where the recording is damaged, or at its end if it is truncated.
        """
        size = self.channels * SAMPLE_BYTES
        content = self._samples.read(frames * size)
        if not content and (reason := self._reason()):
            raise DamagedSound(reason)
        whole = len(content) // size * size
        return np.frombuffer(content[:whole], "<f4").reshape(-1, self.channels)

    def close(self) -> None:
        self._end()

    def _reason(self) -> str | None:
        """What ended the child."""
        assert self._child.stderr
        reason = self._child.stderr.readline().decode().strip()
        code = self._child.wait()
        return (reason if code == FAULTY else "damaged") if code else None


def _end(child: "subprocess.Popen[bytes]") -> None:
    with child:  # waits for its end, and closes the pipes
        child.kill()
