"""Recordings of a voice as shards for the training of speech.

    python -m tools.training.data.recordings --folder STATE --recordings FOLDER --voice NAME

FOLDER has the layout of LibriSpeech: lines "ID TEXT" in files *.trans.txt, and ID.flac (or .wav, .opus, .ogg,
.mp3) beside them; a sentence each, 2 to 15 s. The times of words are not known: such clips teach the sound of
the voice, and the other voices teach reading.
"""

import argparse
from pathlib import Path

import numpy as np

from tools.training.data.clips import CLIPS, SPEECH_FOLDER, Clip, pack
from tools.training.data.espeak import Utterance
from tools.training.data.sound import SPEECH_RATE
from voxport.export.evaluation.sentences import Sentence, read_sentences


def clip_of(sentence: Sentence, voice: str) -> Clip:
    """The recording of a sentence at SPEECH_RATE. Raises UsageError if it cannot be read."""
    samples = (sentence.samples(SPEECH_RATE).clip(-1, 1) * 32767).astype(np.int16)
    return Clip(Utterance(sentence.text, samples, (), (), SPEECH_RATE), voice)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="the state of the training")
    parser.add_argument("--recordings", type=Path, required=True)
    parser.add_argument(
        "--voice", required=True, help="a name, for `VOICES` of tools/training/speech/model.py"
    )
    arguments = parser.parse_args()
    out = arguments.folder / SPEECH_FOLDER
    out.mkdir(parents=True, exist_ok=True)
    clips = [clip_of(sentence, arguments.voice) for sentence in read_sentences(arguments.recordings)]
    for first in range(0, len(clips), CLIPS):
        path = out / f"{arguments.voice}-{first // CLIPS:03}.npz"
        path.write_bytes(pack(clips[first : first + CLIPS]))


if __name__ == "__main__":
    main()
