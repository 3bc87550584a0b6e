"""Evaluates text to speech: a recogniser writes down what a bundle says."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from bundle.progress import advance
from export.evaluation.recognisers import Recogniser
from export.evaluation.result import Figures, mean
from export.evaluation.spoken import Spoken, speak
from export.evaluation.utterances import Utterance
from export.evaluation.words import word_error_rate
from runtime.audio.comparison import compare_audio
from runtime.speech_request import SpeechRequest
from runtime.text_to_speech import Speech, TextToSpeech

LONGEST, SHORTEST = 1.5, 0.5  # of the expected duration: outside, speech runs away or stops early
CHUNK_FRAMES = 64
log = logging.getLogger(__name__)


class Run(NamedTuple):
    """A part of a text, and its speech."""

    request: SpeechRequest
    spoken: Spoken


@dataclass
class ForcedComparison:
    """What a model chooses after the frames of full precision, over all parts of all texts."""

    first: list[bool] = field(default_factory=list)  # whether a code of the first codebook is equal
    others: list[bool] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)  # dB, for each part

    def add(self, task: TextToSpeech, reference: Run) -> None:
        """Runs `task` with the codes of a run of full precision."""
        expected = reference.spoken.chosen
        found = speak(task, reference.request, expected).chosen
        self.first += (found[:, 0] == expected[:, 0]).tolist()
        ends = (found[:, 0] == task.end_code) | (expected[:, 0] == task.end_code)
        self.others += (found[~ends, 1:] == expected[~ends, 1:]).ravel().tolist()
        frames = np.where(ends[:, None], expected, found)[: len(reference.spoken.frames)]
        if len(frames):
            samples = task.decode(frames)
            compared = compare_audio(samples, reference.spoken.samples, task.sample_rate)
            self.distances += [compared[key] for key in ("log_mel_distance_db",) if key in compared]

    def figures(self) -> Figures:
        others = {"other_codes_equal": mean(self.others)} if self.others else {}
        return {"codes_equal": mean(self.first), **others, "log_mel_db": mean(self.distances)}


def speak_text(task: TextToSpeech, text: str, seed: int, voice: str | None) -> list[Run]:
    """The parts of a text, cleaned up and divided as `say` does."""
    return [Run(request, speak(task, request)) for request in _requests(task, text, seed, voice)]


def speak_all(task: TextToSpeech, utterances: Sequence[Utterance], voice: str | None) -> list[list[Run]]:
    """The runs of each sentence. The seed of a sentence is its number."""
    return [speak_text(task, each.text, seed, voice) for seed, each in enumerate(utterances)]


def hear_all(
    task: TextToSpeech,
    spoken: Sequence[Sequence[Run]],
    recogniser: Recogniser,
    utterances: Sequence[Utterance],
) -> float:
    """The word error rate of what the recogniser hears."""
    heard = [recogniser.hear(samples_of(runs), task.sample_rate) for runs in spoken]
    return word_error_rate([each.text for each in utterances], heard)


def samples_of(runs: Sequence[Run]) -> np.ndarray:
    """The sound of a text: float32 [n]."""
    return np.concatenate([run.spoken.samples for run in runs])


def evaluate_speech(
    task: TextToSpeech,
    reference: TextToSpeech | None,
    recogniser: Recogniser,
    utterances: Sequence[Utterance],
    voice: str | None = None,
) -> tuple[Figures, list[dict[str, Any]]]:
    """Figures of all sentences, and a row for each one.

    Without a reference there are no figures beside full precision. The expected duration is that of the
    recording where there is one, else what the text usually takes.
    """
    compared, rows = ForcedComparison(), []
    for seed, utterance in enumerate(utterances):
        row = _row(task, recogniser, utterance, speak_text(task, utterance.text, seed, voice))
        if reference:
            runs = speak_text(reference, utterance.text, seed, voice)
            row["heard_full"] = recogniser.hear(samples_of(runs), task.sample_rate)
            for run in runs:
                compared.add(task, run)
        rows.append(row)
        log.info("%s: %s", utterance.name, row["heard"])
        advance(1)
    figures = _word_error_rates(rows) | {
        "not_ended": mean([not row["ended"] for row in rows]),
        "stopped_early": mean([row["ratio"] < SHORTEST for row in rows]),
        "duration_ratio": mean([row["ratio"] for row in rows]),
    }
    return figures | (compared.figures() if reference else {}), rows


def _row(
    task: TextToSpeech, recogniser: Recogniser, utterance: Utterance, runs: Sequence[Run]
) -> dict[str, Any]:
    rate, samples = task.sample_rate, samples_of(runs)
    row = {"name": utterance.name, "text": utterance.text, "heard": recogniser.hear(samples, rate)}
    expected = task.usual_seconds(utterance.text)
    if utterance.recording:
        recording = utterance.samples(rate)
        row["heard_recording"], expected = recogniser.hear(recording, rate), len(recording) / rate
    seconds = len(samples) / rate
    ended = all(run.spoken.ended for run in runs) and seconds <= LONGEST * expected
    return row | {"seconds": round(seconds, 2), "ratio": round(seconds / expected, 3), "ended": ended}


def _word_error_rates(rows: Sequence[dict[str, Any]]) -> Figures:
    """Of each kind of sound that was heard, over the sentences that have it."""
    figures = {}
    for key, heard in (("wer", "heard"), ("wer_full", "heard_full"), ("wer_recordings", "heard_recording")):
        if pairs := [(row["text"], row[heard]) for row in rows if heard in row]:
            figures[key] = word_error_rate(*zip(*pairs, strict=True))
    return figures


def _requests(task: TextToSpeech, text: str, seed: int, voice: str | None) -> Iterator[SpeechRequest]:
    speech = Speech(task, text, voice=voice, seed=seed, chunk_frames=CHUNK_FRAMES)
    while request := speech.next_part():
        yield request
