"""The model of a bundle in eager PyTorch, as a task."""

import torch

from voxport.bundle.manifest import Bundle, Precision
from voxport.export.code_key import code_key
from voxport.export.model import Model
from voxport.export.resolve import Resolved
from voxport.export.targets.base import Target
from voxport.export.verify.eager import EagerEngine
from voxport.runtime.families import open_family, read_constants
from voxport.runtime.speech_to_text import SpeechToText
from voxport.runtime.text_to_speech import TextToSpeech


def open_eager(bundle: Bundle, resolved: Resolved, target: Target) -> TextToSpeech | SpeechToText:
    """The task with the weights and recipes of `resolved`, and the arithmetic of the target.

    Its tokenizer and voices are those of the bundle.
    """
    family = open_family(bundle.job.family)
    return family.open(bundle, eager_engine(bundle, resolved, target), read_constants(bundle.job))


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
    # stored rows of prompts depend on all of it
    engine.identity = f"eager, voxport {code_key(target)}, torch {torch.__version__}, {recipes}"
    return engine
