"""Tasks of bundles, as `runtime.open` opens them, by their kind."""

from pathlib import Path

import runtime
from runtime.engines import DEFAULT
from runtime.engines.base import EngineOptions
from runtime.speech_to_text import SpeechToText
from runtime.text_to_speech import TextToSpeech


def open_speech(folder: Path, options: EngineOptions = DEFAULT, check_hashes: bool = True) -> TextToSpeech:
    task = runtime.open(folder, options, check_hashes)
    assert isinstance(task, TextToSpeech)
    return task


def open_recogniser(folder: Path) -> SpeechToText:
    task = runtime.open(folder)
    assert isinstance(task, SpeechToText)
    return task
