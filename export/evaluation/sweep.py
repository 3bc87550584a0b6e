"""A sensitivity sweep: what each part of a model loses when only that part is quantised."""

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from bundle.errors import UsageError
from bundle.manifest import Bundle
from bundle.progress import Progress, advance
from export.evaluation.recognisers import open_recogniser
from export.evaluation.recognition import evaluate_recognition
from export.evaluation.reference import open_eager
from export.evaluation.result import Figures
from export.evaluation.run import EvaluationOptions
from export.evaluation.speech import ForcedComparison, hear_all, speak_all
from export.resolve import Resolved
from export.targets.base import Target
from model.checkpoint import is_below
from quantize.recipe import Recipe, Rule
from runtime.speech_to_text import SpeechToText
from runtime.text_to_speech import TextToSpeech

ALL, NOTHING = "all parts", "no part"
_LAYER = re.compile(r"(?:.*\.)?layers\.\d+(?=\.)")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Part:
    """Weights that a recipe quantises, by their paths in each graph. `weights` is their number."""

    name: str
    paths: Mapping[str, tuple[str, ...]]
    weights: int


@dataclass(frozen=True)
class SweepRow:
    part: str
    weights: int
    figures: Figures

    def as_dict(self) -> dict[str, Any]:
        return {"part": self.part, "weights": self.weights, **self.figures}


def parts(resolved: Resolved, layers: bool) -> list[Part]:
    """Each graph with quantised weights, then with `layers` each of its layers; at last all together.

    Raises UsageError where the recipe quantises nothing.
    """
    paths = {graph: _quantised(resolved, graph) for graph in resolved.recipes}
    found = [_part(resolved, graph, {graph: below}) for graph, below in paths.items() if below]
    if not found:
        raise UsageError("sweep: no weight of this bundle is quantised; give a bundle of another recipe")
    for graph, below in paths.items() if layers else ():
        by_layer: dict[str, list[str]] = {}
        for path in below:
            if match := _LAYER.match(path):
                by_layer.setdefault(match.group(), []).append(path)
        found += [_part(resolved, layer, {graph: tuple(some)}) for layer, some in by_layer.items()]
    return [*found, _part(resolved, ALL, paths)]


def _quantised(resolved: Resolved, graph: str) -> tuple[str, ...]:
    source, recipe = resolved.source, resolved.recipes[graph]
    prefixes = source.family.weights_of_graph[graph]
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
) -> list[SweepRow]:
    """A row for no part, for each part alone and for all parts, with the arithmetic of the target.

    Runs in eager PyTorch. Raises UsageError where memory does not hold full precision.
    """
    if resolved.source.is_large:
        raise UsageError("sweep: full precision of this checkpoint does not fit in memory", field="bundle")
    swept = [Part(NOTHING, {}, 0), *parts(resolved, layers)]
    variants = ((part, open_eager(bundle, quantised_only(resolved, part), target)) for part in swept)
    with Progress(len(swept) * len(options.utterances), "sentences"):
        return list(_rows(variants, options))


def _rows(
    variants: Iterator[tuple[Part, TextToSpeech | SpeechToText]], options: EvaluationOptions
) -> Iterator[SweepRow]:
    reference, recogniser = None, None
    for part, task in variants:
        log.info("%s", part.name)
        if isinstance(task, TextToSpeech):
            recogniser = recogniser or open_recogniser(options.recogniser)
            spoken = speak_all(task, options.utterances, options.voice)
            reference = reference or spoken
            figures: Figures = {"wer": hear_all(task, spoken, recogniser, options.utterances)}
            compared = ForcedComparison()
            for runs in reference:
                for run in runs:
                    compared.add(task, run)
                advance(1)
            figures |= compared.figures()
        else:
            figures, _ = evaluate_recognition(task, None, options.utterances)
        yield SweepRow(part.name, part.weights, figures)
