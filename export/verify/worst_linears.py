"""Which linears lose most by the rounding of their activations, if a graph is far from full precision."""

import torch

from voxport.export.model import Model
from voxport.export.targets.base import Target
from voxport.export.verify.eager import EagerEngine
from voxport.quantize.modules import QuantizedLinear, float_activations
from voxport.quantize.recipe import RECIPES

NAMED = 3  # linears in an advice
LEAST = 0.05  # relative to the output: less is what rounding to 8 bits does without outlier channels


def rounding_advice(model: Model, target: Target, graph: str = "") -> str:
    """What to try, for the end of a message; empty if activations are not rounded or lose little.

    `graph`: only this one is looked at.
    """
    found = rounding_errors(model, target, graph)
    worst = sorted(found, key=found.__getitem__, reverse=True)[:NAMED]
    if not worst or found[worst[0]] < LEAST:
        return ""
    named = ", ".join(f"{path} ({found[path]:.0%})" for path in worst)
    text = f"; the rounding of activations moves most the outputs of {named}: export with --calibrate"
    recipe = RECIPES["w8a32"]
    if recipe.linears and target.holds(recipe.linears):
        pattern = "*" + ".".join(worst[0].split(".")[-2:])
        text += f", or keep activations as floats: --quant-rule '{pattern}={recipe.name}'"
    return text


def rounding_errors(model: Model, target: Target, graph: str = "") -> dict[str, float]:
    """How far the rounding of activations moves the output of each linear, by path, in an example call of
    each component, or of those of one graph.
    """
    errors: dict[str, float] = {}
    kernel = target.linear_kernel

    def measured(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
        found, expected = kernel(x, linear), float_activations(x, linear)
        error = float((found - expected).norm() / expected.norm().clamp_min(1e-30))
        for path in linear.paths:
            errors[path] = max(error, errors.get(path, 0.0))
        return found

    engine = EagerEngine(model.components, model.module, target.layout, measured)
    for component in model.components:
        if graph not in ("", component.graph):
            continue
        engine.stream().run(component.name, component.example(0))
    return errors
