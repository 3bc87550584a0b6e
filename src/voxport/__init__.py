"""Speech models on devices: runs bundles, text to speech and speech to text.

    import voxport
    task = voxport.open("artifacts/bundle")
    for samples in task.speak("Hello."): ...

The packages are `bundle` (the format), `runtime`, and `model`, `quantize` and `export`, which need torch.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from voxport.runtime.engines.base import EngineOptions
    from voxport.runtime.forced_alignment import ForcedAlignment
    from voxport.runtime.opening import open_bundle as open
    from voxport.runtime.opening import open_embedded
    from voxport.runtime.speech_request import SpeechRequest
    from voxport.runtime.speech_to_text import SpeechToText
    from voxport.runtime.text_to_speech import TextToSpeech

__all__ = [
    "EngineOptions",
    "ForcedAlignment",
    "SpeechRequest",
    "SpeechToText",
    "TextToSpeech",
    "open",
    "open_embedded",
]
_SOURCES = {  # name: the module that defines it and its name there; imported on first use
    "EngineOptions": ("voxport.runtime.engines.base", "EngineOptions"),
    "ForcedAlignment": ("voxport.runtime.forced_alignment", "ForcedAlignment"),
    "SpeechRequest": ("voxport.runtime.speech_request", "SpeechRequest"),
    "SpeechToText": ("voxport.runtime.speech_to_text", "SpeechToText"),
    "TextToSpeech": ("voxport.runtime.text_to_speech", "TextToSpeech"),
    "open": ("voxport.runtime.opening", "open_bundle"),
    "open_embedded": ("voxport.runtime.opening", "open_embedded"),
}

_bundle = Path(__file__).parent / "bundle"
if not _bundle.is_dir():
    raise ImportError(
        f"{_bundle} is not a link to a folder; clone the repository with git "
        "(on Windows with `-c core.symlinks=true`), or unpack the .tar.gz archive in place of the .zip"
    )


def __getattr__(name: str) -> object:
    if name not in _SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _SOURCES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
