"""Which linears lose most by the rounding of their activations, and the rule that keeps these as floats."""

from collections.abc import Mapping

import torch

from voxport.export.model import Model
from voxport.export.targets.base import Target
from voxport.export.verify.eager import EagerEngine
from voxport.quantize.modules import QuantizedLinear, float_activations
from voxport.quantize.recipe import RECIPES, with_float_activations
from voxport.quantize.rounding import RoundingLoss, relative_error

NAMED = 3  # linears in a message
LEAST = 0.05  # relative to the output: less is what rounding to 8 bits does without outlier channels


def rounding_advice(model: Model, target: Target, graph: str = "") -> str:
    """What to try, for the end of a message; empty if activations are not rounded or lose little.

    `graph`: the only one that is measured; empty: all.
    """
    named = describe_worst(rounding_losses(model, target, graph), target)
    if not named:
        return ""
    return f"; {named}" if model.resolved.calibration else f"; {named}; a calibration reduces these errors"


def describe_worst(losses: Mapping[str, RoundingLoss], target: Target | None = None) -> str:
    """The linears whose outputs move most; empty if all of them move little.

    With a rule, if a recipe with float activations has the weights of the worst one, and the target holds it.
    """
    worst = sorted(losses, key=lambda path: losses[path].error, reverse=True)[:NAMED]
    if not worst or losses[worst[0]].error < LEAST:
        return ""
    text = ", ".join(f"{path} ({losses[path].error:.0%})" for path in worst)
    text = f"the rounding of activations moves most the outputs of {text}"
    recipe = with_float_activations(losses[worst[0]].scheme)
    if recipe is None or (target and (scheme := RECIPES[recipe].linears) and not target.holds(scheme)):
        return text
    pattern = "*" + ".".join(worst[0].split(".")[-2:])
    return f"{text}; the rule '{pattern}={recipe}' keeps the activations of such linears as floats"


def rounding_losses(model: Model, target: Target, graph: str = "") -> dict[str, RoundingLoss]:
    """The losses of linears by path, in an example call of each component, or of those of one graph."""
    losses: dict[str, RoundingLoss] = {}
    kernel = target.linear_kernel

    def measured(x: torch.Tensor, linear: QuantizedLinear) -> torch.Tensor:
        found, expected = kernel(x, linear), float_activations(x, linear)
        loss = RoundingLoss(relative_error(found, expected), linear.scheme)
        for path in linear.paths:
            losses[path] = max(loss, losses.get(path, loss), key=lambda each: each.error)
        return found

    engine = EagerEngine(model.components, model.module, target.layout, measured)
    for component in model.components:
        if graph in ("", component.graph):
            engine.stream().run(component.name, component.example(0))
    return losses
