"""Speaks a sentence with one bundle, transcribes it with another, and prints both and the word error rate.

demo.py TEXT_TO_SPEECH SPEECH_TO_TEXT [--text TEXT] [-o FILE.wav]
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from voxport.bundle.errors import VoxportError
from voxport.export.evaluation.figures import word_error_rate
from voxport.export.evaluation.recognition import BundleRecogniser
from voxport.runtime.audio.files import write_audio
from voxport.runtime.opening import open_task
from voxport.runtime.text_to_speech import TextToSpeech

TEXT = "Seven green bottles are standing on the wall."


def run(text_to_speech: Path, speech_to_text: Path, text: str, output: Path) -> None:
    """Raises VoxportError."""
    speech = open_task(TextToSpeech, text_to_speech)
    samples = np.concatenate(list(speech.speak(text)))
    write_audio(output, samples, speech.sample_rate)
    transcript = BundleRecogniser(speech_to_text).transcribe(samples, speech.sample_rate)
    print(f"text:       {text}\ntranscript: {transcript}")
    print(f"word error rate: {word_error_rate([text], [transcript]):.1%}; sound: {output}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text_to_speech", type=Path, help="folder of a bundle that speaks")
    parser.add_argument("speech_to_text", type=Path, help="folder of a bundle that transcribes")
    parser.add_argument("--text", default=TEXT)
    parser.add_argument("-o", "--output", type=Path, default=Path("hello.wav"))
    try:
        run(**vars(parser.parse_args()))
    except VoxportError as error:
        print(f"demo: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
