"""Evaluates speech to text: a bundle transcribes recordings whose words are known."""

import logging
from collections.abc import Sequence

from voxport.bundle.errors import UsageError
from voxport.bundle.progress import advance
from voxport.export.evaluation.recognisers import transcript
from voxport.export.evaluation.result import Figures, Row, mean
from voxport.export.evaluation.utterances import Utterance
from voxport.export.evaluation.words import word_error_rate
from voxport.runtime.speech_to_text import SpeechToText

RATES = {"wer": "transcript", "wer_full": "transcript_full", "wer_live": "transcript_live"}
log = logging.getLogger(__name__)


def evaluate_recognition(
    task: SpeechToText, reference: SpeechToText | None, utterances: Sequence[Utterance], live: bool = True
) -> tuple[Figures, list[Row]]:
    """Figures of all recordings, and a row for each one: with the longest delay and, if the bundle can,
    live with the delay that live audio has by default.

    Without a reference there are no figures beside full precision. Raises UsageError if a sentence has no
    recording.
    """
    for utterance in utterances:
        utterance.check_recording()
    live = live and _is_live(task)
    rows = [_row(task, reference, utterance, live) for utterance in utterances]
    texts = [row["text"] for row in rows]
    figures = {
        key: word_error_rate(texts, [row[name] for row in rows])
        for key, name in RATES.items()
        if name in rows[0]
    }
    if live:
        figures["live_equal"] = mean([row["is_live_equal"] for row in rows])
    if reference:
        figures["text_equal"] = mean([row["transcript"] == row["transcript_full"] for row in rows])
    return figures, rows


def _row(task: SpeechToText, reference: SpeechToText | None, utterance: Utterance, live: bool) -> Row:
    rate, longest = task.sample_rate, max(task.delays_ms)
    samples = utterance.samples(rate)
    row: Row = {"name": utterance.name, "text": utterance.text}
    row["transcript"] = transcript(task, samples, rate, longest)
    if live:
        row["transcript_live"] = transcript(task, samples, rate, task.delays_ms[0], live=True)
        row["is_live_equal"] = row["transcript"] == transcript(task, samples, rate, longest, live=True)
    if reference:
        row["transcript_full"] = transcript(reference, samples, rate, longest)
    log.info("%s: %s; recognised: %s", utterance.name, utterance.text, row["transcript"])
    advance(1)
    return row


def _is_live(task: SpeechToText) -> bool:
    try:
        task.check_live()
    except UsageError:
        return False
    return True
