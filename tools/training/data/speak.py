"""Kokoro speaks the sentences for training, once: shards of sound in STATE/speech.

    python -m tools.training.data.speak --folder STATE --voices package/voices --source own --shards 0:36
    python -m tools.training.data.speak ... --source own --shards 0:91 --only-speech

A shard depends on its name only, so several processes can make different shards, and an interrupted one is
made anew. A third of the sentences is spoken by the voices of the embedded model. The others are for
recognition: by any other voice, or by the mean of two, at another speed. With --only-speech, the voices of
the model speak all sentences.
"""

import argparse
import os
import random
import sys
import time
from pathlib import Path

from tools.training.data import kokoro
from tools.training.data.clips import CLIPS, SPEECH_FOLDER, Clip, pack
from tools.training.data.sentences import SOURCES, trained

NATURAL = {"af_heart": 0.2, "am_michael": 0.15}  # share of the sentences
ONLY_SPEECH = "speech-"  # begins the names of shards in which only these voices speak
MIXED = "mixed"  # the name of all other voices
SLOWEST, FASTEST = 0.8, 1.3


def style_of(rng: random.Random, others: list[str]) -> kokoro.Style:
    """A voice of the model, or one or two of the others, if there are any, at some speed."""
    draw = rng.random() * (1.0 if others else sum(NATURAL.values()))
    for voice, share in NATURAL.items():
        if draw < share:
            return kokoro.Style((voice,))
        draw -= share
    first = rng.choice(others)
    voices = (first, rng.choice([name for name in others if name[0] == first[0]]))
    return kokoro.Style(voices if rng.random() < 0.5 else voices[:1], rng.uniform(SLOWEST, FASTEST))


def speak_shard(teacher: kokoro.Teacher, source: str, index: int, only_speech: bool = False) -> list[Clip]:
    """The clips of `CLIPS` sentences. Sentences whose words cannot be matched are left out."""
    rng, clips = random.Random(f"{source}:{index}"), []
    others = [name for name in teacher.voices if name not in kokoro.HELD_OUT and name not in NATURAL]
    others = [] if only_speech else others
    for text in trained(source)[index * CLIPS : (index + 1) * CLIPS]:
        style = style_of(rng, others)
        if (utterance := teacher.speak(text, style)) is not None:
            clips.append(Clip(utterance, style.voices[0] if style.voices[0] in NATURAL else MIXED))
    return clips


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the state of the training")
    parser.add_argument("--voices", type=Path, required=True, help="the folder of the voices' styles")
    parser.add_argument("--source", choices=SOURCES, required=True)
    parser.add_argument("--shards", required=True, metavar="FIRST:END", help=f"shards of {CLIPS} sentences")
    parser.add_argument("--only-speech", action="store_true", help="only the voices of the embedded model")
    arguments = parser.parse_args()
    first, end = map(int, arguments.shards.split(":"))
    if not (arguments.folder / kokoro.MODEL).exists():
        kokoro.prepare(arguments.folder, arguments.voices)
    teacher, out = kokoro.Teacher(arguments.folder), arguments.folder / SPEECH_FOLDER
    out.mkdir(exist_ok=True)
    for index in range(first, end):
        prefix = ONLY_SPEECH if arguments.only_speech else ""
        path = out / f"{prefix}{arguments.source}-{index:03}.npz"
        if path.exists():
            continue
        started = time.monotonic()
        content = pack(speak_shard(teacher, arguments.source, index, arguments.only_speech))
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(content)
        partial.rename(path)
        print(f"{path.name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
