"""Clips: sentences with their sound. Shards of them are made by espeak-ng in a process of their own, or were
written by `tools.training.data.speak`.

A shard of espeak-ng depends on its name only (see `espeak.Espeak`). So training that continues at a shard
sees what it would have seen without an interruption. `python -m tools.training.data.clips` is the process of
one shard; it reads the texts from stdin.
"""

import argparse
import io
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from tools.training.data.espeak import Espeak, Utterance, Voice
from tools.training.data.sentences import training_sentences

CLIPS = 64  # a shard, three minutes of sound
SPEECH_FOLDER = "speech"  # of the natural shards, in the folder of the state
Source = tuple[str, int, int]  # name, first and end of the numbers of shards
ALL_VOICES: tuple[Source, ...] = (("examples", 0, 24), ("own", 0, 36))  # Kokoro with all of its voices
SPEECH_VOICES: tuple[Source, ...] = (("speech-own", 0, 91), ("speech-examples", 0, 24))
ACCENTS = ("en-us", "en-us", "en-us", "en", "en-gb-x-rp", "en-gb-scotland", "en-029", "en-us-nyc")
VARIANTS = (
    *(f"f{number}" for number in range(1, 6)),
    *(f"m{number}" for number in range(1, 9)),
    "Alex",
    "Alicia",
    "Andrea",
    "Andy",
    "Annie",
    "Denis",
    "Gene",
    "Jacky",
    "Lee",
    "Mario",
    "Michael",
    "Mike",
    "adam",
    "anika",
    "antonio",
    "belinda",
    "benjamin",
    "caleb",
    "david",
    "ed",
    "edward",
    "grandma",
    "grandpa",
    "john",
    "klatt",
    "klatt2",
    "klatt3",
    "linda",
    "max",
    "paul",
    "quincy",
    "rob",
    "robert",
    "steph",
    "travis",
    "victor",
    "zac",
)


@dataclass(frozen=True)
class Clip:
    """An utterance and the name of its voice."""

    utterance: Utterance
    voice: str


@dataclass(frozen=True)
class Shard:
    """The name of a shard of espeak-ng."""

    index: int
    seed: int = 0
    clips: int = CLIPS

    def texts(self) -> list[str]:
        """The sentences of the shard."""
        return list(islice(training_sentences(self.seed * 1_000_003 + self.index), self.clips))

    def speak(self, texts: Sequence[str]) -> list[Clip]:
        """Any voice, speed and pitch. Equal shards are equal only in a new process."""
        espeak, rng = Espeak(), random.Random(f"clips:{self.seed}:{self.index}")
        clips = []
        for text in texts:
            name = f"{rng.choice(ACCENTS)}+{rng.choice(VARIANTS)}"
            voice = Voice(name, rng.randint(120, 210), rng.randint(25, 75))
            clips.append(Clip(espeak.speak(text, voice), voice.name))
        return clips


def start_shard(shard: Shard) -> "subprocess.Popen[bytes]":
    """Starts the process of a shard, for `read_shard`, with its texts, which take long to read."""
    command = [sys.executable, "-m", "tools.training.data.clips", "--index", str(shard.index)]
    command += ["--seed", str(shard.seed)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin
    with process.stdin:
        process.stdin.write(json.dumps(shard.texts()).encode())
    process.stdin = None  # `communicate` would write to it
    return process


def read_shard(process: "subprocess.Popen[bytes]") -> list[Clip]:
    """The clips of a started process. Raises CalledProcessError."""
    content, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return unpack(content)


def shard_files(folder: Path, sources: Sequence[Source]) -> list[Path]:
    """The files of these shards in the folder of a state. Raises FileNotFoundError if one is missing."""
    found = [
        folder / SPEECH_FOLDER / f"{name}-{index:03}.npz"
        for name, first, end in sources
        for index in range(first, end)
    ]
    if missing := [path for path in found if not path.exists()]:
        raise FileNotFoundError(
            f"{missing[0]}: is missing, and {len(missing) - 1} other shards; make them with `python -m "
            "tools.training.data.speak`"
        )
    return found


@dataclass(frozen=True)
class Mixture:
    """The clips of `steps` steps: those of some natural shards, and clips of espeak-ng."""

    steps: int
    natural_shards: int
    robot_clips: int = 0


class Shards:
    """The clips of each step. The next shard of espeak-ng is made while one is used."""

    def __init__(self, mixture: Mixture, natural: Sequence[Path], seed: int):
        """The natural shards are drawn from `natural`; other files are another training."""
        self._mixture, self._natural, self._seed = mixture, natural, seed
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._index, self._clips = -1, list[Clip]()

    def at(self, step: int) -> list[Clip]:
        """The clips of a step."""
        index = self.index(step)
        if index != self._index:
            self._start(index)
            robots = read_shard(self._started.pop(index)) if index in self._started else []
            rng = random.Random(f"natural:{self._seed}:{index}")
            chosen = rng.choices(self._natural, k=self._mixture.natural_shards)
            self._index = index
            self._clips = [*robots, *(clip for path in chosen for clip in unpack(path.read_bytes()))]
            self._start(index + 1)
        return self._clips

    def index(self, step: int) -> int:
        """The number of the shards of a step."""
        return step // self._mixture.steps

    def _start(self, index: int) -> None:
        if self._mixture.robot_clips and index not in self._started:
            self._started[index] = start_shard(Shard(index, self._seed, self._mixture.robot_clips))


def pack(clips: Sequence[Clip]) -> bytes:
    """The file of a shard: an .npz with all samples in a row and a header in JSON."""
    about = [
        {
            "text": clip.utterance.text,
            "words": clip.utterance.words,
            "phonemes": clip.utterance.phonemes,
            "rate": clip.utterance.rate,
            "voice": clip.voice,
            "length": len(clip.utterance.samples),
        }
        for clip in clips
    ]
    file = io.BytesIO()
    samples = np.concatenate([clip.utterance.samples for clip in clips])
    np.savez(file, header=np.frombuffer(json.dumps(about).encode(), np.uint8), samples=samples)
    return file.getvalue()


def unpack(content: bytes) -> list[Clip]:
    """The clips of a shard's file."""
    with np.load(io.BytesIO(content)) as arrays:
        header, samples = json.loads(arrays["header"].tobytes()), arrays["samples"]
    clips, start = [], 0
    for about in header:
        sound = samples[start : start + about["length"]]
        start += about["length"]
        phonemes = tuple((name, first) for name, first in about["phonemes"])
        utterance = Utterance(about["text"], sound, tuple(about["words"]), phonemes, about["rate"])
        clips.append(Clip(utterance, about["voice"]))
    return clips


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    shard = Shard(arguments.index, arguments.seed)
    texts = json.load(sys.stdin)
    # Its buffer repeats a write that a signal cuts short. With PYTHONUNBUFFERED, stdout itself has none.
    with suppress(BrokenPipeError), open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(pack(shard.speak(texts)))  # a pipe breaks if the training is interrupted


if __name__ == "__main__":
    main()
