"""Writes recordings of the test set, to evaluate bundles with.

    python -m tools.training.held_out --folder STATE --out FOLDER [--noise DECIBELS]
    python -m tools.training.held_out --folder STATE --out FOLDER --texts FILE --voices NAME NAME

The folder has the layout of LibriSpeech: lines "ID TEXT" in a file *.trans.txt, and the recording ID.opus of
each, of about 24 kbit/s. Kokoro speaks the lines of FILE with the voices in turn. The second command made the
recordings of `export/calibration`. With `--noise 20`, white noise and two kinds with more low frequencies, in
turn, are 20 dB below the speech.
"""

import argparse
from pathlib import Path

import numpy as np
import soundfile

from tools.training.data.clips import Clip
from tools.training.data.kokoro import HELD_OUT, RATE, Style, Teacher
from tools.training.data.sentences import TEST_SET
from tools.training.data.sound import NOISE_SMOOTHING, samples_of, with_noise

BITRATE_LEVEL = 0.95  # libsndfile's level: about 24 kbit/s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the state of the training, with Kokoro")
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--texts", type=Path, default=TEST_SET, metavar="FILE", help="sentences to speak")
    parser.add_argument("--voices", nargs="+", default=HELD_OUT, metavar="NAME", help="voices, in turn")
    parser.add_argument("--noise", type=float, metavar="DECIBELS", help="add noise this far below the speech")
    arguments = parser.parse_args()
    teacher = Teacher(arguments.folder)
    arguments.out.mkdir(parents=True)
    lines, kind, voices = [], arguments.out.name.replace("_", "-"), arguments.voices
    for number, text in enumerate(arguments.texts.read_text(encoding="utf-8").splitlines()):
        name, voice = f"{kind}-{number:03}", voices[number % len(voices)]
        utterance = teacher.speak(text, Style((voice,)))
        assert utterance is not None, text
        samples = samples_of(Clip(utterance, voice), RATE)
        if arguments.noise is not None:
            noise = np.random.default_rng(number).standard_normal(len(samples), dtype=np.float32)
            smoothing = NOISE_SMOOTHING[number % len(NOISE_SMOOTHING)]
            samples = with_noise(samples, noise, smoothing, arguments.noise)
        path = arguments.out / f"{name}.opus"
        soundfile.write(path, samples, RATE, "OPUS", format="OGG", compression_level=BITRATE_LEVEL)
        lines.append(f"{name} {text}\n")
    (arguments.out / f"{kind}.trans.txt").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
