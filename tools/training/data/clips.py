"""Clips: sentences with their sound, in shards that are made by a process of their own.

A shard depends on its name only (see `espeak.Espeak`). So training that continues at a shard sees what it
would have seen without an interruption. `python -m tools.training.data.clips` is the process of one shard.
"""

import argparse
import io
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tools.training.data.espeak import SAMPLE_RATE, Espeak, Utterance, Voice
from tools.training.data.sentences import held_out_sentences, training_sentences

CLIPS = 256  # 15 minutes of sound, a shard
VOICES = ("en-us+f3", "en-us+m3")
MAIN_VOICE_SHARE = 0.7
SOURCES: dict[str, Callable[[int], Iterator[str]]] = {
    "training": training_sentences,
    "held_out": held_out_sentences,
}


@dataclass(frozen=True)
class Shard:
    """The name of a shard. `varied`: speed and pitch differ from clip to clip, as recognition needs."""

    index: int
    seed: int = 0
    source: str = "training"
    varied: bool = True
    clips: int = CLIPS

    def utterances(self) -> Iterator[tuple[Utterance, Voice]]:
        """Speaks the clips. Equal shards are equal only in a new process."""
        espeak, rng = Espeak(), random.Random(f"clips:{self.seed}:{self.index}")
        seed = self.seed * 1_000_003 + self.index
        texts = SOURCES[self.source](seed)
        for text in islice(texts, self.clips):
            voice = Voice(VOICES[rng.random() > MAIN_VOICE_SHARE])
            if self.varied:
                voice = Voice(voice.name, rng.randint(125, 185), rng.randint(35, 65))
            yield espeak.speak(text, voice), voice


@dataclass(frozen=True)
class Clip:
    """An utterance at `rate` samples per second, and its voice's number in `VOICES`."""

    utterance: Utterance
    voice: int
    rate: int


def make_shard(shard: Shard) -> list[Clip]:
    """Speaks a shard in a new process. Raises CalledProcessError."""
    return read_shard(start_shard(shard))


def start_shard(shard: Shard) -> "subprocess.Popen[bytes]":
    """Starts the process of a shard, for `read_shard`."""
    command = [sys.executable, "-m", "tools.training.data.clips", "--index", str(shard.index)]
    command += ["--seed", str(shard.seed), "--source", shard.source, "--clips", str(shard.clips)]
    return subprocess.Popen([*command, *(["--varied"] if shard.varied else [])], stdout=subprocess.PIPE)


def read_shard(process: "subprocess.Popen[bytes]") -> list[Clip]:
    """The clips of a started process."""
    content, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return _unpacked(content)


class Shards:
    """Each shard serves `steps_per_shard` steps. The next one is made while one is used."""

    def __init__(self, steps_per_shard: int, varied: bool, seed: int):
        self._steps, self._varied, self._seed = steps_per_shard, varied, seed
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._index, self._clips = -1, list[Clip]()

    def at(self, step: int) -> list[Clip]:
        """The clips of a step."""
        index = self.index(step)
        if index != self._index:
            self._start(index)
            self._index, self._clips = index, read_shard(self._started.pop(index))
            self._start(index + 1)
        return self._clips

    def index(self, step: int) -> int:
        """The number of the shard of a step."""
        return step // self._steps

    def _start(self, index: int) -> None:
        if index not in self._started:
            self._started[index] = start_shard(Shard(index, self._seed, varied=self._varied))


def _packed(shard: Shard) -> bytes:
    made = list(shard.utterances())
    about = [
        {
            "text": one.text,
            "words": one.words,
            "phonemes": one.phonemes,
            "voice": VOICES.index(voice.name),
            "length": len(one.samples),
        }
        for one, voice in made
    ]
    file = io.BytesIO()
    header = json.dumps({"rate": SAMPLE_RATE, "clips": about}).encode()
    samples = np.concatenate([one.samples for one, _ in made])
    np.savez(file, header=np.frombuffer(header, np.uint8), samples=samples)
    return file.getvalue()


def _unpacked(content: bytes) -> list[Clip]:
    with np.load(io.BytesIO(content)) as arrays:
        header, samples = json.loads(arrays["header"].tobytes()), arrays["samples"]
    clips, start = [], 0
    for about in header["clips"]:
        sound = samples[start : start + about["length"]]
        start += about["length"]
        phonemes = tuple((name, first) for name, first in about["phonemes"])
        utterance = Utterance(about["text"], sound, tuple(about["words"]), phonemes)
        clips.append(Clip(utterance, about["voice"], header["rate"]))
    return clips


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--source", choices=SOURCES, default="training")
    parser.add_argument("--clips", type=int, default=CLIPS)
    parser.add_argument("--varied", action="store_true", help="vary speed and pitch")
    arguments = parser.parse_args()
    shard = Shard(arguments.index, arguments.seed, arguments.source, arguments.varied, arguments.clips)
    # Its buffer repeats a write that a signal cuts short. With PYTHONUNBUFFERED, stdout itself has none.
    with suppress(BrokenPipeError), open(sys.stdout.fileno(), "wb", closefd=False) as out:
        out.write(_packed(shard))  # a pipe breaks if the training is interrupted


if __name__ == "__main__":
    main()
