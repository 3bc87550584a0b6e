"""Evaluates speech to text: a bundle writes down recordings whose words are known."""

import logging
from collections.abc import Sequence
from typing import Any

from bundle.errors import UsageError
from bundle.progress import advance
from export.evaluation.recognisers import transcript
from export.evaluation.result import Figures, mean
from export.evaluation.utterances import Utterance
from export.evaluation.words import word_error_rate
from runtime.speech_to_text import SpeechToText

log = logging.getLogger(__name__)


def evaluate_recognition(
    task: SpeechToText, reference: SpeechToText | None, utterances: Sequence[Utterance]
) -> tuple[Figures, list[dict[str, Any]]]:
    """Figures of all recordings, and a row for each one: as a recording and, where the bundle can, live.

    Without a reference there are no figures beside full precision. Raises UsageError where a sentence has no
    recording.
    """
    is_live, rows = _is_live(task), []
    for utterance in utterances:
        samples = utterance.samples(task.sample_rate)
        row = {"name": utterance.name, "text": utterance.text}
        row["heard"] = transcript(task, samples, task.sample_rate)
        if is_live:
            row["heard_live"] = transcript(task, samples, task.sample_rate, live=True)
        if reference:
            row["heard_full"] = transcript(reference, samples, task.sample_rate)
        rows.append(row)
        log.info("%s: %s", utterance.name, row["heard"])
        advance(1)
    texts = [row["text"] for row in rows]
    rates = {"wer": "heard", "wer_full": "heard_full", "wer_live": "heard_live"}
    figures = {
        key: word_error_rate(texts, [row[heard] for row in rows])
        for key, heard in rates.items()
        if heard in rows[0]
    }
    if is_live:
        figures["live_equal"] = mean([row["heard"] == row["heard_live"] for row in rows])
    if reference:
        figures["text_equal"] = mean([row["heard"] == row["heard_full"] for row in rows])
    return figures, rows


def _is_live(task: SpeechToText) -> bool:
    try:
        task.check_live()
    except UsageError:
        return False
    return True
