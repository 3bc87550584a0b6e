"""Writes recordings of held-out sentences, to evaluate bundles with.

    python -m tools.training.held_out --out FOLDER [--noise DECIBELS]

The folder has the layout of LibriSpeech: lines "ID TEXT" in a file *.trans.txt, and the recording ID.opus of
each, of about 24 kbit/s. espeak-ng speaks them with the voices of the training data. With `--noise 20`,
white noise and two kinds with more low frequencies, in turn, are 20 dB below the speech at 24 kHz.
"""

import argparse
from pathlib import Path

import numpy as np
import soundfile

from tools.training.data.clips import Shard, make_shard
from tools.training.data.sound import NOISE_SMOOTHING, samples_of, with_noise

CLIPS = 100
SEED = 1  # as in the evaluations of the trainings
RATE = 24000  # the rate of Opus that is nearest to espeak-ng
BITRATE_LEVEL = 0.95  # libsndfile's level: about 24 kbit/s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a new folder")
    parser.add_argument("--clips", type=int, default=CLIPS)
    parser.add_argument("--noise", type=float, metavar="DECIBELS", help="add noise this far below the speech")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True)
    lines = []
    for number, clip in enumerate(
        make_shard(Shard(0, SEED, "held_out", varied=False, clips=arguments.clips))
    ):
        name = f"held-out-{number:03}"
        samples = samples_of(clip, RATE)
        if arguments.noise is not None:
            noise = np.random.default_rng(number).standard_normal(len(samples), dtype=np.float32)
            smoothing = NOISE_SMOOTHING[number % len(NOISE_SMOOTHING)]
            samples = with_noise(samples, noise, smoothing, arguments.noise)
        path = arguments.out / f"{name}.opus"
        soundfile.write(path, samples, RATE, "OPUS", format="OGG", compression_level=BITRATE_LEVEL)
        lines.append(f"{name} {clip.utterance.text}\n")
    (arguments.out / "held-out.trans.txt").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
