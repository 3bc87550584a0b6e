"""Sentences to evaluate with, and their recordings, in the layout of LibriSpeech."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.runtime.audio.sources import Recording

TRANSCRIPTS = ".trans.txt"  # ending of a file of lines "ID TEXT"
SUFFIXES = ".flac", ".wav", ".opus", ".ogg", ".mp3"  # the recording beside it is called ID
HELD_OUT = Path(__file__).parent / "held_out"  # sentences that no embedded model was trained on


@dataclass(frozen=True)
class Sentence:
    """A sentence, and its recording if there is one."""

    name: str
    text: str
    recording: Path | None = None

    def check_recording(self) -> Path:
        """The file. Raises UsageError if there is none."""
        if self.recording is None:
            raise UsageError(
                f"{self.name}: has no recording; give a folder with {self.name}.flac",
                field="sentences",
            )
        return self.recording

    def samples(self, rate: int) -> np.ndarray:
        """The recording as float32 [n] at `rate` Hz. Raises UsageError if it cannot be read."""
        recording = self.check_recording()
        return np.concatenate(list(Recording(recording, rate).blocks()))


def read_sentences(path: Path, count: int | None = None) -> list[Sentence]:
    """The first `count` sentences of a text file or of a folder.

    A text file has one sentence per line. A folder has files `*.trans.txt` with lines "ID TEXT", at any
    depth, and may have the recording ID.flac (or .wav, .opus, .ogg, .mp3) beside each. Raises UsageError.
    """
    if path.is_dir():
        found = [each for file in sorted(path.rglob(f"*{TRANSCRIPTS}")) for each in _read_transcripts(file)]
        expected = f"expected files *{TRANSCRIPTS} with lines ID TEXT"
    else:
        lines = enumerate(_lines(path), 1)
        found = [Sentence(f"line {number}", line.strip()) for number, line in lines if line.strip()]
        expected = "expected one sentence per line"
    if not found:
        raise UsageError(f"{path}: holds no sentence; {expected}", field="sentences")
    return found[:count]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8"
        raise UsageError(f"{path}: {reason}; expected a text file or a folder", field="sentences") from None


def _read_transcripts(path: Path) -> list[Sentence]:
    sentences = []
    for number, line in enumerate(_lines(path), 1):
        name, _, text = line.strip().partition(" ")
        if name and not text:
            raise UsageError(
                f"{path}: line {number}: {name!r} has no text; expected ID TEXT", field="sentences"
            )
        if name:
            recording = next(filter(Path.is_file, (path.parent / f"{name}{end}" for end in SUFFIXES)), None)
            sentences.append(Sentence(name, text, recording))
    return sentences
