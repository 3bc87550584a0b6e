"""Evaluates text to speech: a recogniser transcribes what a bundle says."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from voxport.bundle.errors import UsageError
from voxport.bundle.progress import advance
from voxport.export.evaluation.figures import Figures, Row, mean, standard_error, word_error_rate
from voxport.export.evaluation.recognition import Recogniser
from voxport.export.evaluation.sentences import Sentence
from voxport.runtime.audio.mel import compare_audio
from voxport.runtime.batching import CodeSlots, Status
from voxport.runtime.speech_request import SpeechOptions, SpeechRequest
from voxport.runtime.text_to_speech import Speech, TextToSpeech

LONGEST, SHORTEST = 1.5, 0.5  # times the expected duration: outside, speech runs away or stops early
# Added to what a text usually takes, because short texts take longer per character.
EXTRA_SECONDS = 1.0
CHUNK_FRAMES = 64
RATES = {"wer": "transcript", "wer_full": "transcript_full", "wer_recordings": "transcript_recording"}
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SpokenPart:
    """`chosen` int64 [T, K] are the codes of each step, the last one the end code if the model ended
    the speech. `samples` float32 [n] follow from the codes that were fed back.
    """

    request: SpeechRequest
    chosen: np.ndarray
    samples: np.ndarray
    status: Status

    @property
    def frames(self) -> np.ndarray:
        """The codes without the end code: int64 [T, K]."""
        return self.chosen[: len(self.chosen) - (self.status == Status.END)]


def speak_part(task: TextToSpeech, request: SpeechRequest, forced: np.ndarray | None = None) -> SpokenPart:
    """Speaks a request. With `forced` int64 [T, K] the step after each frame takes these codes instead of
    the chosen ones, and there are exactly as many steps. Raises UsageError.
    """
    if forced is not None:  # no limit of the request ends the run before its last step
        request = replace(request, budget=None, max_frames=len(forced) + 1)
    slots = task.slot_decoder(1)
    if not isinstance(slots, CodeSlots):
        raise UsageError("evaluate: the frames of this model are not codes, which evaluation compares")
    for _ in slots.prepare(request)(0, lambda: sys.maxsize):
        pass
    chosen, pieces, final = list[np.ndarray](), [np.zeros(0, np.float32)], None
    try:
        while final is None and (forced is None or len(chosen) < len(forced)):
            if chosen:
                slots.feed(1)
            slots.decode(1)
            chosen.append(slots.codes(0).copy())
            if forced is not None:
                slots.replace_codes(0, forced[len(chosen) - 1])
            samples, final = slots.take(0)
            pieces += [] if samples is None else [samples]
    finally:
        slots.free(0)
    return SpokenPart(request, np.stack(chosen), np.concatenate(pieces), final or Status.LIMIT)


@dataclass(frozen=True)
class SpokenText:
    """The parts of a text, and its samples float32 [n] with the pauses between them."""

    parts: list[SpokenPart]
    samples: np.ndarray

    @property
    def ended(self) -> bool:
        """Whether the model ended every part itself."""
        return all(part.status == Status.END for part in self.parts)


@dataclass
class ForcedComparison:
    """What a model chooses after the frames of full precision. `add` collects over all parts of all texts."""

    first: list[bool] = field(default_factory=list)  # whether a code of the first codebook is equal
    others: list[bool] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)  # dB, for each part

    def add(self, task: TextToSpeech, reference: SpokenText) -> None:
        """Runs `task` with the codes of full precision."""
        for part in reference.parts:
            expected = part.chosen
            found = speak_part(task, part.request, expected).chosen
            self.first += (found[:, 0] == expected[:, 0]).tolist()
            ends = (found[:, 0] == task.end_code) | (expected[:, 0] == task.end_code)
            self.others += (found[~ends, 1:] == expected[~ends, 1:]).ravel().tolist()
            frames = np.where(ends[:, None], expected, found)[: len(part.frames)]
            if len(frames):
                compared = compare_audio(task.decode(frames), part.samples, task.sample_rate)
                self.distances += [compared[key] for key in ("log_mel_distance_db",) if key in compared]

    def figures(self) -> Figures:
        """Those that were measured."""
        found: dict[str, Sequence[float]] = {
            "codes_equal": self.first,
            "other_codes_equal": self.others,
            "log_mel_db": self.distances,
        }
        return {key: mean(values) for key, values in found.items() if values}


def speak_text(task: TextToSpeech, sentence: Sentence, seed: int, options: SpeechOptions) -> SpokenText:
    """A sentence, cleaned up and divided as `say` does. Raises UsageError that names it."""
    try:
        own: SpeechOptions = {**options, "seed": seed, "chunk_frames": CHUNK_FRAMES}
        speech = Speech(task, sentence.text, **own)
        parts, pieces = list[SpokenPart](), list[np.ndarray]()
        while request := speech.next_part():
            part = speak_part(task, request)
            parts.append(part)
            pieces += [speech.silence, part.samples]
            speech.end_part(part.status)
    except UsageError as error:
        raise UsageError(f"{sentence.name}: {error}", field=error.field) from None
    return SpokenText(parts, np.concatenate(pieces))


def evaluate_speech(
    task: TextToSpeech,
    reference: TextToSpeech | None,
    recogniser: Recogniser,
    sentences: Sequence[Sentence],
    options: SpeechOptions,
) -> tuple[Figures, list[Row]]:
    """Figures of all sentences, and a row for each one. `options` are the voice and the like.

    The seed of a sentence is its number. A sentence that is there several times is read with several seeds.
    Without a reference there are no figures beside full precision. The expected duration is the duration of
    the recording if there is one, else of full precision, else what the text usually takes.

    Raises UsageError.
    """
    compared, rows = ForcedComparison(), []
    for seed, sentence in enumerate(sentences):
        spoken = speak_text(task, sentence, seed, options)
        beside = speak_text(reference, sentence, seed, options) if reference else None
        if beside:
            compared.add(task, beside)
        rows.append(_row(task, recogniser, sentence, spoken, beside))
        log.info("%s: %s; recognised: %s", sentence.name, sentence.text, rows[-1]["transcript"])
        advance(1)
    figures = _word_error_rates(rows) | {
        "not_ended": mean([not row["is_in_time"] for row in rows]),
        "stopped_early": mean([row["ratio"] < SHORTEST for row in rows]),
        "duration_ratio": mean([row["ratio"] for row in rows]),
    }
    return figures | compared.figures(), rows


def _row(
    task: TextToSpeech,
    recogniser: Recogniser,
    sentence: Sentence,
    spoken: SpokenText,
    reference: SpokenText | None,
) -> Row:
    rate, samples = task.sample_rate, spoken.samples
    row: Row = {"name": sentence.name, "text": sentence.text}
    row["transcript"] = recogniser.transcribe(samples, rate)
    expected = task.estimated_seconds(sentence.text) + EXTRA_SECONDS
    if reference:
        row["transcript_full"] = recogniser.transcribe(reference.samples, rate)
        expected = len(reference.samples) / rate
    if sentence.recording:
        recording = sentence.samples(rate)
        row["transcript_recording"], expected = recogniser.transcribe(recording, rate), len(recording) / rate
    seconds, ratio = len(samples) / rate, len(samples) / rate / max(expected, 1 / rate)
    row |= {"seconds": round(seconds, 2), "ratio": round(ratio, 3), "has_ended": spoken.ended}
    return row | {"is_in_time": spoken.ended and ratio <= LONGEST}


def _word_error_rates(rows: Sequence[Row]) -> Figures:
    """The rate of each kind of sound that every sentence has."""
    texts = [row["text"] for row in rows]
    rates = {
        key: [row[name] for row in rows] for key, name in RATES.items() if all(name in row for row in rows)
    }
    figures = {key: word_error_rate(texts, found) for key, found in rates.items()}
    error = standard_error(texts, rates["wer"], rates["wer_full"]) if "wer_full" in rates else None
    return figures | ({} if error is None else {"wer_difference_error": error})
