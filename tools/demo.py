"""Speaks a sentence with one bundle, transcribes it with another, and prints both and the word error rate.

demo.py TEXT_TO_SPEECH SPEECH_TO_TEXT [--text TEXT] [-o FILE.wav]
"""

import argparse
from pathlib import Path

import numpy as np

from export.evaluation.recognisers import BundleRecogniser
from export.evaluation.words import word_error_rate
from runtime.audio.files import write_audio
from runtime.opening import open_task
from runtime.text_to_speech import TextToSpeech

TEXT = "Seven green bottles are standing on the wall."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("speaker", type=Path)
    parser.add_argument("listener", type=Path)
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("-o", "--output", type=Path, default=Path("hello.wav"))
    arguments = parser.parse_args()
    speaker = open_task(TextToSpeech, arguments.speaker)
    samples = np.concatenate(list(speaker.speak(arguments.text)))
    write_audio(arguments.output, samples, speaker.sample_rate)
    heard = BundleRecogniser(arguments.listener).transcribe(samples, speaker.sample_rate)
    print(f"said:  {arguments.text}\nheard: {heard}")
    print(f"word error rate: {word_error_rate([arguments.text], [heard]):.1%}, sound: {arguments.output}")


if __name__ == "__main__":
    main()
