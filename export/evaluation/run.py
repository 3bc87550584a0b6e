"""Evaluates a bundle by its task, beside full precision if memory holds that."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import torch

from voxport.bundle.errors import UsageError
from voxport.bundle.files import folder_name
from voxport.bundle.manifest import NO_LICENCE_NEEDED, Bundle, Precision
from voxport.bundle.progress import progress
from voxport.export.evaluation.figures import Evaluation
from voxport.export.evaluation.recognition import Recogniser, evaluate_recognition, open_recogniser
from voxport.export.evaluation.sentences import Sentence
from voxport.export.evaluation.speech import evaluate_speech
from voxport.export.job import code_key
from voxport.export.model import Model
from voxport.export.resolve import Resolved
from voxport.export.targets.base import Target
from voxport.export.verify.eager import EagerEngine
from voxport.runtime.engines import ENGINES
from voxport.runtime.engines.base import EngineOptions
from voxport.runtime.families import open_family, read_constants
from voxport.runtime.machine import describe_machine
from voxport.runtime.speech_request import SpeechOptions
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.text_to_speech import TextToSpeech

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EvaluationOptions:
    """`recogniser` and `speech` (the voice and the like) are for text to speech."""

    sentences: Sequence[Sentence]
    recogniser: Recogniser | None = None
    speech: SpeechOptions = field(default_factory=SpeechOptions)


def evaluation_options(
    family: str,
    sentences: Sequence[Sentence],
    recogniser: str | None = None,
    voice: str | None = None,
    readings: int = 1,
) -> EvaluationOptions:
    """Options for bundles of a family; opens the recogniser, by its name, if they speak.

    `readings` is how often each sentence is spoken. Raises UsageError on one of the last three for speech to
    text, and if a sentence lacks its recording.
    """
    if issubclass(open_family(family).task, TextToSpeech):
        spoken = [*sentences] * readings
        return EvaluationOptions(spoken, open_recogniser(recogniser), SpeechOptions(voice=voice))
    for name, value in (("recogniser", recogniser), ("voice", voice), ("readings", readings)):
        if value not in (None, 1):
            raise UsageError(f"{value}: is for text to speech; leave it out", field=name)
    for sentence in sentences:
        sentence.check_recording()
    return EvaluationOptions(sentences)


def evaluate(
    bundle: Bundle, resolved: Resolved | None, target: Target, options: EvaluationOptions
) -> Evaluation:
    """Raises UsageError. `resolved` is what the bundle was made from; None without its checkpoint."""
    family, job = open_family(bundle.job.family), bundle.job
    engine = target.open_artifacts(bundle, EngineOptions())
    task = cast("TextToSpeech | SpeechToText", family.open(bundle, engine, read_constants(job)))
    if job.licence == NO_LICENCE_NEEDED:
        log.warning("%s: its weights are random, so neither speech nor words mean anything", job.source.name)
    reference = None
    if resolved and resolved.source.is_large:
        log.warning("full precision does not fit in memory: the bundle is evaluated alone")
    elif resolved:
        reference = open_eager(bundle, unchanged(resolved), target)
    with progress(len(options.sentences), "sentences"):
        if isinstance(task, TextToSpeech):
            assert options.recogniser
            name, full = options.recogniser.name, cast("TextToSpeech | None", reference)
            figures, rows = evaluate_speech(task, full, options.recogniser, options.sentences, options.speech)
        else:
            name, full_text = "the bundle", cast("SpeechToText | None", reference)
            figures, rows = evaluate_recognition(task, full_text, options.sentences)
    folder = folder_name(bundle.folder)
    machine = describe_machine(EngineOptions().thread_count(bundle), ENGINES[job.target].packages[0])
    quant = f"{job.request.quant}, calibrated" if job.calibration else job.request.quant
    size, ran = bundle.size, engine.identity
    return Evaluation(folder, job.family, job.target, quant, size, name, ran, machine, figures, tuple(rows))


def unchanged(resolved: Resolved) -> Resolved:
    """Full precision with the weights of the checkpoint: no channel is scaled or rotated."""
    return replace(resolved.in_full_precision(), calibration=None)


def open_eager(bundle: Bundle, resolved: Resolved, target: Target) -> TextToSpeech | SpeechToText:
    """The task with the weights and recipes of `resolved`, and the arithmetic of the target.

    It has the tokenizer and the voices of the bundle.
    """
    family = open_family(bundle.job.family)
    engine = eager_engine(bundle, resolved, target)
    return cast("TextToSpeech | SpeechToText", family.open(bundle, engine, read_constants(bundle.job)))


def eager_engine(
    bundle: Bundle, resolved: Resolved, target: Target, precision: Precision = "float32"
) -> EagerEngine:
    """The components of the bundle, with the weights and recipes of `resolved` and the arithmetic of the
    target. Unquantised weights are rounded to `precision`.
    """
    model = Model(resolved, target.layout, precision)
    names = {entry.name for entry in bundle.components}
    components = [component for component in model.components if component.name in names]
    engine = EagerEngine(components, model.module, target.layout, target.linear_kernel)
    recipes = [recipe.to_entry().model_dump(mode="json") for recipe in resolved.recipes.values()]
    calibration = resolved.calibration.sha256 if resolved.calibration else ""
    # stored rows of prompts depend on all of it
    engine.identity = f"eager, voxport {code_key(target)}, torch {torch.__version__}, {recipes} {calibration}"
    return engine
