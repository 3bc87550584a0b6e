"""Tasks of bundles, as `voxport.open` opens them, by their kind."""

from pathlib import Path

import voxport
from voxport.runtime.engines.base import DEFAULT, EngineOptions
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.text_to_speech import TextToSpeech


def open_speech(folder: Path, options: EngineOptions = DEFAULT, check_hashes: bool = True) -> TextToSpeech:
    task = voxport.open(folder, options, check_hashes)
    assert isinstance(task, TextToSpeech)
    return task


def open_recogniser(folder: Path) -> SpeechToText:
    task = voxport.open(folder)
    assert isinstance(task, SpeechToText)
    return task
