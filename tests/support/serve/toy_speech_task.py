"""A text-to-speech task that speaks on the toy engine, with two voices."""

from collections.abc import Callable

import numpy as np
from support.runtime import toy_speech
from support.runtime.speech_tasks import ToyVoxtral
from support.runtime.toy_engine import Fault
from support.stand_ins import stand_in

from voxport.bundle.errors import UsageError
from voxport.runtime.families.voxtral_tts.decoder import Prompt
from voxport.runtime.speech_request import SpeechRequest

VOICES = {"anna": "en", "fr_bert": "fr"}
TEXT_IDS = 4  # in every prompt, because the cache has few rows
SLOTS = 2


class ToySpeechTask(ToyVoxtral):
    """Every part of a text is spoken until the cache is full. Another text or voice gives other samples."""

    def __init__(self, fault: Fault = lambda component, inputs: None) -> None:
        super().__init__()
        self.engine = toy_speech.ToyEngine(fault)
        self._prompts = stand_in(build=_prompt, fits_prompt=self.fits_prompt)
        self._prefixes = stand_in(**dict.fromkeys(("load", "kept", "save"), lambda *_: None))

    @property
    def max_slots(self) -> int:
        return SLOTS

    def voices(self) -> dict[str, int]:
        return dict.fromkeys(VOICES, 1)

    def bundle_voices(self) -> list[str]:
        return list(VOICES)

    def default_bundle_voice(self) -> str:
        return "anna"

    def language(self, voice: str | None) -> str:
        return VOICES.get(voice or "anna", "en")

    def fits_prompt(self, voice: str | None, instruct: str | None = None) -> Callable[[str], bool]:
        if voice is not None and voice not in VOICES:
            raise UsageError(f"voice {voice!r}: unknown", field="voice")
        return lambda text: True


def _prompt(request: SpeechRequest) -> Prompt:
    voice = np.full((1, toy_speech.DIM), list(VOICES).index(request.voice or "anna"), np.float32)
    text = np.resize(np.frombuffer(request.text.encode(), np.uint8).astype(np.int64) % 20, TEXT_IDS)
    return Prompt(np.array([1, 25, 24, 2], np.int64), voice, text)
