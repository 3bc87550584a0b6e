"""`--quant auto`: which linears get how many bits, from what each of them does to the output of its graph.

The error of a linear in a scheme is measured at its own output, on rows of the calibration that no search
saw, with channels as changed for `AUTO_BASE`. Its effect on the output of the graph is measured for groups:
each layer, and each kind of linear, such as all that project values. Only the linears of one group are
quantised at a time, from weights alone; the group's loss is the squared error of the output. A linear's share
is its own error times a factor of its layer and one of its kind. The kind matters, because the next linears
may cancel most of what a linear gives, and not its errors. If errors of different linears are not correlated,
their squares add up: the expected loss of a mixture is the sum over its linears.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt

import torch
from torch import nn

from voxport.bundle.errors import RecipeError
from voxport.export.calibration.graph import GraphReplay, weights_of
from voxport.export.estimate import graph_weights
from voxport.export.evaluation.sweep import quantised_paths
from voxport.export.resolve import Resolved
from voxport.export.targets.base import Target
from voxport.model.checkpoint import is_below, layer_of
from voxport.model.layers.channels import ChannelChanges
from voxport.quantize.calibration import Share, quantize
from voxport.quantize.inputs import InputRows
from voxport.quantize.migration import SAMPLED
from voxport.quantize.recipe import AUTO_BASE, find_recipe
from voxport.quantize.schemes import Scheme

RECIPES = ("w4g128", AUTO_BASE, "w8")
FLOAT_BYTES = 4  # of a value that is not quantised
ROUNDS = 20  # of fitting to losses
LEAST = 1e-12  # errors and outputs of a linear whose weights are zero
Group = tuple[Sequence[str], float]  # paths of linears, and their loss together
RowsOf = Callable[[str], InputRows | None]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """A linear in one recipe. Without a path: all linears of a graph that have no other choice.

    weights: their number.
    size: bytes in an artifact.
    reads: how often they are read for a frame.
    loss: expected at the output of its graph.
    """

    path: str
    recipe: str
    weights: int
    size: float
    reads: float
    loss: float


@dataclass(frozen=True)
class Budget:
    """The most `bits` per weight of the linears that have choices, or the most MB of all weights that are
    read for a frame.

    One row of a product takes about the time in which its weight is read. So the bytes of a frame over the
    bandwidth of the memory are its time, on every machine; `voxport bench` prints both.
    """

    bits: float | None = None
    frame_mb: float | None = None

    def cost(self, choice: Choice) -> float:
        """Bytes of the budget."""
        return choice.size * bool(choice.path) if self.bits else choice.size * choice.reads

    def limit(self, weights: int) -> float:
        """Bytes for so many weights."""
        return weights * self.bits / 8 if self.bits else 1e6 * (self.frame_mb or 0)

    def __str__(self) -> str:
        return f"{self.bits:g} bits per weight" if self.bits else f"{self.frame_mb:g} MB per frame"

    def describe(self, cost: float, weights: int) -> str:
        """Bytes of so many weights, in the unit of the budget."""
        return f"{8 * cost / weights:.3f} bits per weight" if self.bits else f"{cost / 1e6:.3f} MB per frame"


def mixture(choices: Iterable[Choice], budget: Budget, target: Target) -> list[Share]:
    """A recipe for each linear, within the budget. Raises RecipeError."""
    held, fixed = held_recipes(target), list[Choice]()
    options: dict[str, list[Choice]] = {}
    for choice in choices:
        if not choice.path:
            fixed.append(choice)
        elif choice.recipe in held:
            options.setdefault(choice.path, []).append(choice)
    if not options:
        raise RecipeError("no linear is left to choose for; remove rules, or give more data")
    weights = sum(some[0].weights for some in options.values())
    limit, least = budget.limit(weights), sum(map(budget.cost, fixed))
    found = choose(options, limit - least, budget.cost)
    loss, cost = sum(each.loss for each in found), least + sum(map(budget.cost, found))
    if cost > limit:
        raise RecipeError(
            f"the smallest recipes take {budget.describe(cost, weights)}"
            + (f", of which {budget.describe(least, weights)} have no other choice" if least else "")
            + f"; the budget is {budget.describe(limit, weights)}"
        )
    plain = sum(each.loss for some in options.values() for each in some if each.recipe == AUTO_BASE)
    text = "auto: %s, with %.0f %% of the expected squared error of %s everywhere"
    log.info(text, budget.describe(cost, weights), 100 * loss / plain, AUTO_BASE)
    return [Share(each.path, each.recipe, each.weights, each.loss / loss) for each in found]


def check_budget(resolved: Resolved, budget: Budget, target: Target) -> None:
    """Raises RecipeError if no recipe of the target takes so few bits."""
    shapes = [
        resolved.source.quantizable[path].get_parameter("weight").shape for path in _all_linears(resolved)
    ]
    schemes = [scheme for name in held_recipes(target) if (scheme := _scheme(name))]
    least = sum(
        min(each.storage(shape).artifact for each in schemes if not each.reason_not_storable(shape, False))
        for shape in shapes
    )
    weights = sum(map(prod, shapes))
    if budget.bits and weights and least > budget.limit(weights):
        raise RecipeError(
            f"the smallest recipes take {budget.describe(least, weights)}; the budget is {budget}",
            field="bits",
        )


def held_recipes(target: Target) -> list[str]:
    """The recipes that a target holds."""
    return [name for name in RECIPES if (scheme := _scheme(name)) and target.holds(scheme)]


def choose(
    options: Mapping[str, Sequence[Choice]], limit: float, cost: Callable[[Choice], float]
) -> list[Choice]:
    """One choice for each path, with the least sum of losses that is found within the limit of costs.

    Begins with the cheapest choices. As long as something is left, the linear changes for which a byte brings
    the most.
    """
    chosen = {path: min(some, key=lambda each: (cost(each), each.loss)) for path, some in options.items()}
    left = limit - sum(map(cost, chosen.values()))
    while True:
        steps = [
            ((chosen[path].loss - each.loss) / (cost(each) - cost(chosen[path])), each)
            for path, some in options.items()
            for each in some
            if cost(chosen[path]) < cost(each) <= cost(chosen[path]) + left and each.loss < chosen[path].loss
        ]
        if not steps:
            return list(chosen.values())
        _, best = max(steps, key=lambda step: (step[0], step[1].path))
        left -= cost(best) - cost(chosen[best.path])
        chosen[best.path] = best


def rules_of(found: Iterable[Share]) -> tuple[str, ...]:
    """Rules for a recipe beside `AUTO_BASE`."""
    return tuple(f"{each.path}={each.recipe}" for each in found if each.recipe != AUTO_BASE)


def expected_losses(
    resolved: Resolved, replays: Mapping[str, GraphReplay], rows_of: RowsOf, changes: ChannelChanges
) -> Iterator[Choice]:
    """All choices for the linears of a checkpoint that `AUTO_BASE` quantises, with their channels changed.
    Then one for the rest of each graph.

    `rows_of(path)` are the inputs of a linear in floats, if they are known.
    """
    checkpoint = resolved.source.checkpoint.changed(changes)
    weight_of, sizes = weights_of(checkpoint, resolved.source.root()), graph_weights(resolved, FLOAT_BYTES)
    for graph, replay in replays.items():
        found = {
            path: _choices(path, weight_of(path).float(), _changed(rows, changes, path), replay)
            for path in _linears(resolved, graph)
            if (rows := rows_of(path))
        }
        layers, kinds = dict[str, list[str]](), dict[str, list[str]]()
        for path in found:
            layer = layer_of(path)
            layers.setdefault(layer, []).append(path)
            if path != layer:
                kinds.setdefault(path.removeprefix(layer), []).append(path)
        groups: list[list[Group]] = [[], []]
        for place, named in enumerate((kinds, layers)):
            for name, paths in named.items():
                loss = replay.loss_of(frozenset(paths), checkpoint)
                text = "auto: %s%s in %s moves the outputs of %s by %.1f %%"
                log.info(text, "all " * (place == 0), name.lstrip("."), AUTO_BASE, graph, 100 * sqrt(loss))
                groups[place].append((paths, loss))
        errors = {path: plain for path, (plain, _) in found.items()}
        losses = fitted(errors, *groups)
        for path, (plain, some) in found.items():
            yield from (replace(each, loss=each.loss * losses[path] / plain) for each in some)
        chosen = (each for _, some in found.values() for each in some if each.recipe == AUTO_BASE)
        fixed = sizes[graph].read * replay.calls_per_frame - sum(each.size * each.reads for each in chosen)
        yield Choice("", "", 0, fixed, 1.0, 0.0)


def fitted(errors: Mapping[str, float], kinds: Sequence[Group], layers: Sequence[Group]) -> dict[str, float]:
    """Errors of linears by path, each times a factor of its layer and one of its kind, so that the sum over
    each layer is the layer's loss. The kinds' losses only say how they compare with each other.
    """
    found, of_kinds = dict(errors), {path for paths, _ in kinds for path in paths}
    whole = sum(loss for paths, loss in layers if of_kinds.issuperset(paths))
    scale = whole / (sum(loss for _, loss in kinds) or 1)
    for _ in range(ROUNDS):  # iterative proportional fitting
        for paths, loss in (*((paths, scale * loss) for paths, loss in kinds), *layers):
            if total := sum(found[path] for path in paths):
                found |= {path: found[path] * loss / total for path in paths}
    return found


def _linears(resolved: Resolved, graph: str) -> list[str]:
    """Linears of a graph that no rule gives another scheme."""
    recipe, base = resolved.recipes[graph], _scheme(AUTO_BASE)
    return [path for path in quantised_paths(resolved, graph) if recipe.scheme_for(path, False) == base]


def _all_linears(resolved: Resolved) -> list[str]:
    return [path for graph in resolved.graphs for path in _linears(resolved, graph)]


def _changed(rows: InputRows, changes: ChannelChanges, path: str) -> InputRows:
    return InputRows(*(changes.of_inputs(path, part) for part in (rows.fit, rows.held_out)))


def _choices(
    path: str, weight: torch.Tensor, rows: InputRows, replay: GraphReplay
) -> tuple[float, list[Choice]]:
    """The error of `AUTO_BASE` from weights alone, and choices with the errors that calibration leaves; all
    squared and relative, at the output of the linear.
    """
    times = prod(count for below, count in replay.reads.items() if is_below(path, (below,)))
    sampled, plain, found = weight[:SAMPLED], 0.0, list[Choice]()
    expected = rows.held_out @ sampled.mT
    norm = expected.norm().clamp_min(LEAST)

    def error_of(module: nn.Module) -> float:
        return float(((module(rows.held_out) - expected).norm() / norm).square())

    for name in RECIPES:
        scheme = _scheme(name)
        if scheme and scheme.reason_not_storable(weight.shape, False) is None:
            size, reads = scheme.storage(weight.shape).artifact, times * replay.calls_per_frame
            error = error_of(quantize(scheme, sampled, path, rows).module)
            found.append(Choice(path, name, weight.numel(), size, reads, error))
            if name == AUTO_BASE:
                plain = error_of(scheme.quantize(sampled, path, False).module)
    return max(plain, LEAST), found


def _scheme(name: str) -> Scheme | None:
    return find_recipe(name).linears
