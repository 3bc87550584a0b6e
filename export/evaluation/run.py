"""Evaluates a bundle by its task, beside full precision where memory holds that."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from bundle.manifest import Bundle
from bundle.progress import Progress
from export.evaluation.recognisers import open_recogniser
from export.evaluation.recognition import evaluate_recognition
from export.evaluation.reference import open_eager
from export.evaluation.result import Evaluation
from export.evaluation.speech import evaluate_speech
from export.evaluation.utterances import Utterance
from export.resolve import Resolved
from export.targets.base import Target
from runtime.engines import open_engine
from runtime.families import open_family, read_constants
from runtime.speech_to_text import SpeechToText
from runtime.text_to_speech import TextToSpeech

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationOptions:
    """`recogniser`, for text to speech: see `open_recogniser`. `voice`: a name (None: the default)."""

    utterances: Sequence[Utterance]
    recogniser: str | None = None
    voice: str | None = None


def evaluate(
    bundle: Bundle, resolved: Resolved | None, target: Target, options: EvaluationOptions
) -> Evaluation:
    """Raises UsageError. `resolved` is what the bundle was made from; None without its checkpoint."""
    family = open_family(bundle.job.family)
    task = family.open(bundle, open_engine(bundle), read_constants(bundle.job))
    reference = None
    if resolved and resolved.source.is_large:
        log.warning("full precision does not fit in memory: the bundle is evaluated alone")
    elif resolved:
        reference = open_eager(bundle, resolved.in_full_precision(), target)
    with Progress(len(options.utterances), "sentences"):
        if isinstance(task, TextToSpeech):
            recogniser = open_recogniser(options.recogniser)
            beside = cast("TextToSpeech | None", reference)
            figures, rows = evaluate_speech(task, beside, recogniser, options.utterances, options.voice)
            name = recogniser.name
        else:
            heard_in_full = cast("SpeechToText | None", reference)
            figures, rows = evaluate_recognition(task, heard_in_full, options.utterances)
            name = "itself"
    job = bundle.job
    return Evaluation(
        bundle.folder.resolve().name,
        job.family,
        job.target,
        job.request.quant,
        bundle.size,
        name,
        figures,
        tuple(rows),
    )
