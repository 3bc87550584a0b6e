"""`--quant auto`: which linears get how many bits, from what each of them does to the output of its graph.

The error of a linear in a scheme is measured at its own output, on rows of the calibration that no search
saw. What an error does to the output of the graph is measured once for each layer: all its linears are
quantised, nothing else is, and the squared error of the output is divided by the sum of theirs. If errors of
different linears are not correlated, their squares add up: the expected loss of a mixture is the sum over its
linears.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from voxport.bundle.errors import RecipeError
from voxport.export.calibration.graph import GraphReplay, weights_of
from voxport.export.evaluation.sweep import ALL, parts_to_sweep
from voxport.export.resolve import Resolved
from voxport.export.targets.base import Target
from voxport.model.checkpoint import is_below
from voxport.quantize.calibration import Share
from voxport.quantize.inputs import InputRows
from voxport.quantize.migration import output_error
from voxport.quantize.recipe import AUTO_BASE, find_recipe
from voxport.quantize.schemes import Scheme

RECIPES = ("w4g128", AUTO_BASE, "w8")
RowsOf = Callable[[str], InputRows | None]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """A linear in one recipe.

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
    """The most `bits` per weight of linears, or the most MB of linears that are read for a frame.

    One row of a product takes about the time in which its weight is read. So the bytes of a frame over the
    bandwidth of the memory are its time, on every machine; `voxport bench` prints both.
    """

    bits: float | None = None
    frame_mb: float | None = None

    def cost(self, choice: Choice) -> float:
        """Bytes of the budget."""
        return choice.size if self.bits else choice.size * choice.reads

    def limit(self, weights: int) -> float:
        """Bytes for so many weights."""
        return weights * self.bits / 8 if self.bits else 1e6 * (self.frame_mb or 0)

    def describe(self, cost: float, weights: int) -> str:
        """Bytes of so many weights, in the unit of the budget."""
        return f"{8 * cost / weights:.3f} bits per weight" if self.bits else f"{cost / 1e6:.3f} MB per frame"


def mixture(choices: Iterable[Choice], budget: Budget, target: Target) -> list[Share]:
    """A recipe for each linear, within the budget. Raises RecipeError."""
    held = {name for name in RECIPES if (scheme := _scheme(name)) and target.holds(scheme)}
    options: dict[str, list[Choice]] = {}
    for choice in choices:
        if choice.recipe in held:
            options.setdefault(choice.path, []).append(choice)
    weights = sum(some[0].weights for some in options.values())
    limit = budget.limit(weights)
    found = choose(options, limit, budget.cost)
    loss, cost = sum(each.loss for each in found), sum(map(budget.cost, found))
    if cost > limit:
        raise RecipeError(
            f"the smallest recipes take {budget.describe(cost, weights)}; the budget is "
            f"{budget.describe(limit, weights)}"
        )
    plain = sum(each.loss for some in options.values() for each in some if each.recipe == AUTO_BASE)
    text = "auto: %s, expected loss %.2e; all %s: %.2e"
    log.info(text, budget.describe(cost, weights), loss, AUTO_BASE, plain)
    return [Share(each.path, each.recipe, each.weights, each.loss / loss) for each in found]


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
    resolved: Resolved, replays: Mapping[str, GraphReplay], rows_of: RowsOf
) -> Iterator[Choice]:
    """All choices for the linears of a checkpoint that `AUTO_BASE` quantises.

    `rows_of(path)` are the inputs of a linear in floats, if they are known.
    """
    weight_of = weights_of(resolved.source.checkpoint, resolved.source.root())
    for part, graph, paths in _parts(resolved):
        replay = replays[graph]
        found = [
            choice
            for path in paths
            if (rows := rows_of(path))
            for choice in _choices(path, weight_of(path).float(), rows, replay)
        ]
        if found:
            loss = replay.loss_of(frozenset(paths))
            unit = loss / sum(each.loss for each in found if each.recipe == AUTO_BASE)
            log.info("%s: loss %.2e", part, loss)
            yield from (replace(each, loss=each.loss * unit) for each in found)


def _parts(resolved: Resolved) -> Iterator[tuple[str, str, list[str]]]:
    """Name, graph and linears of each layer, and of each linear outside of layers, without linears that
    another rule names.
    """
    base = _scheme(AUTO_BASE)
    for part in parts_to_sweep(resolved, layers=True):
        if part.name not in {*resolved.graphs, ALL}:
            for graph, paths in part.paths.items():
                recipe = resolved.recipes[graph]
                yield part.name, graph, [path for path in paths if recipe.scheme_for(path, False) == base]


def _choices(path: str, weight: torch.Tensor, rows: InputRows, replay: GraphReplay) -> Iterator[Choice]:
    """With errors of its own output in place of losses."""
    times = prod(count for below, count in replay.reads.items() if is_below(path, (below,)))
    for name in RECIPES:
        scheme = _scheme(name)
        if scheme and scheme.reason_not_storable(weight.shape, False) is None:
            error = output_error([scheme], [weight], rows, torch.zeros(weight.shape[1], dtype=torch.long))
            size, reads = scheme.storage(weight.shape).artifact, times * replay.calls_per_frame
            yield Choice(path, name, weight.numel(), size, reads, error)


def _scheme(name: str) -> Scheme | None:
    return find_recipe(name).linears
