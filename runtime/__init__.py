"""Runs bundles: text to speech and speech to text, without torch where the engine needs none.

import runtime
task = runtime.open("artifacts/bundle")
for samples in task.speak("Hello."): ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.engines.base import EngineOptions
    from runtime.opening import open_bundle as open
    from runtime.speech_request import SpeechRequest
    from runtime.speech_to_text import SpeechToText
    from runtime.text_to_speech import TextToSpeech

__all__ = ["EngineOptions", "SpeechRequest", "SpeechToText", "TextToSpeech", "open"]
_SOURCES = {  # name: the module that defines it and its name there; imported on first use
    "EngineOptions": ("runtime.engines.base", "EngineOptions"),
    "SpeechRequest": ("runtime.speech_request", "SpeechRequest"),
    "SpeechToText": ("runtime.speech_to_text", "SpeechToText"),
    "TextToSpeech": ("runtime.text_to_speech", "TextToSpeech"),
    "open": ("runtime.opening", "open_bundle"),
}


def __getattr__(name: str) -> object:
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _SOURCES[name]
    return getattr(import_module(module), attribute)
