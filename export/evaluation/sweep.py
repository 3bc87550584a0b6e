"""A sensitivity sweep: what each part of a model loses when only that part is quantised."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from voxport.bundle.errors import UsageError
from voxport.bundle.manifest import Bundle
from voxport.bundle.progress import advance, progress
from voxport.export.evaluation.figures import Figures, Row, mean, word_error_rate
from voxport.export.evaluation.recognition import evaluate_recognition
from voxport.export.evaluation.run import EvaluationOptions, open_eager, unchanged
from voxport.export.evaluation.speech import ForcedComparison, SpokenText, speak_text
from voxport.export.resolve import Resolved
from voxport.export.targets.base import Target
from voxport.model.checkpoint import is_below, layer_of
from voxport.quantize.recipe import Recipe, Rule
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.text_to_speech import TextToSpeech

ALL, NOTHING, UNCALIBRATED = "all parts", "no part", "all parts, without calibration"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """Weights that a recipe quantises, by their paths in each graph. `weights` is their number."""

    name: str
    paths: Mapping[str, tuple[str, ...]]
    weights: int


def parts_to_sweep(resolved: Resolved, layers: bool) -> list[Part]:
    """Each graph with quantised weights, then with `layers` each of its layers and each weight outside of
    them; at last all together. Graphs may share weights.

    Raises UsageError if the recipe quantises nothing.
    """
    paths = {graph: quantised_paths(resolved, graph) for graph in resolved.recipes}
    found = [_part(resolved, graph, {graph: below}) for graph, below in paths.items() if below]
    if not found:
        raise UsageError("sweep: no weight of this bundle is quantised; give a bundle of another recipe")
    for graph, below in paths.items() if layers else ():
        by_layer: dict[str, list[str]] = {}
        for path in below:
            by_layer.setdefault(layer_of(path), []).append(path)
        found += [_part(resolved, layer, {graph: tuple(some)}) for layer, some in by_layer.items()]
    return [*found, _part(resolved, ALL, paths)]


def quantised_paths(resolved: Resolved, graph: str) -> tuple[str, ...]:
    """Linears and tables of a graph that its recipe quantises."""
    source, recipe = resolved.source, resolved.recipes[graph]
    prefixes = resolved.graphs[graph].weights
    return tuple(
        path
        for path, module in source.quantizable.items()
        if is_below(path, prefixes) and recipe.scheme_for(path, isinstance(module, nn.Embedding)) is not None
    )


def _part(resolved: Resolved, name: str, paths: Mapping[str, tuple[str, ...]]) -> Part:
    below = {path for some in paths.values() for path in some}
    weights = sum(resolved.source.quantizable[path].get_parameter("weight").numel() for path in below)
    return Part(name, paths, weights)


def quantised_only(resolved: Resolved, part: Part) -> Resolved:
    """The same with the schemes of its recipes for the weights of one part, and floats for all others."""
    recipes = {}
    for graph, recipe in resolved.recipes.items():
        rules = tuple(
            Rule(path, recipe.scheme_for(path, False), recipe.scheme_for(path, True))
            for path in part.paths.get(graph, ())
        )
        recipes[graph] = Recipe("none", None, None, rules)
    return replace(resolved, recipes=recipes)


def sweep(
    bundle: Bundle, resolved: Resolved, target: Target, options: EvaluationOptions, layers: bool
) -> list[Row]:
    """A row of figures for no part, for each part alone and for all parts, with the arithmetic of the target.
    A calibrated bundle has another row: all parts without calibration.

    Runs in eager PyTorch. Raises UsageError if memory does not hold full precision.
    """
    if resolved.source.is_large:
        raise UsageError("sweep: full precision of this checkpoint does not fit in memory")
    swept = [Part(NOTHING, {}, 0), *parts_to_sweep(resolved, layers)]
    variants = [(part, quantised_only(resolved, part)) for part in swept]
    variants[0] = (swept[0], unchanged(resolved))
    if resolved.calibration:
        variants.append((replace(swept[-1], name=UNCALIBRATED), replace(resolved, calibration=None)))
    opened = ((part, open_eager(bundle, each, target)) for part, each in variants)
    with progress(len(variants) * len(options.sentences), "sentences"):
        return list(_rows(opened, options))


def _rows(
    variants: Iterator[tuple[Part, TextToSpeech | SpeechToText]], options: EvaluationOptions
) -> Iterator[Row]:
    """The first variant is full precision."""
    full_speech, full_text = list[SpokenText](), list[str]()
    for part, task in variants:
        log.info("%s", part.name)
        if isinstance(task, TextToSpeech):
            figures, spoken = _speech_figures(task, full_speech, options)
            full_speech = full_speech or spoken
        else:
            figures, rows = evaluate_recognition(task, None, options.sentences, live=False)
            found = [row["transcript"] for row in rows]
            full_text = full_text or found
            figures["text_equal"] = mean([a == b for a, b in zip(found, full_text, strict=True)])
        yield {"part": part.name, "weights": part.weights, **figures}


def _speech_figures(
    task: TextToSpeech, full: Sequence[SpokenText], options: EvaluationOptions
) -> tuple[Figures, list[SpokenText]]:
    """Figures beside full precision (empty: `task` itself), and the free speech of each sentence."""
    assert options.recogniser
    spoken = []
    for seed, sentence in enumerate(options.sentences):
        spoken.append(speak_text(task, sentence, seed, options.speech))
        advance(1)
    transcripts = [options.recogniser.transcribe(each.samples, task.sample_rate) for each in spoken]
    compared = ForcedComparison()
    for each in full or spoken:
        compared.add(task, each)
    rate = word_error_rate([each.text for each in options.sentences], transcripts)
    return {"wer": rate, **compared.figures()}, spoken
