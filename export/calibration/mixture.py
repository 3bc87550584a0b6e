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
from voxport.quantize.calibration import InputRows, Share
from voxport.quantize.migration import output_error
from voxport.quantize.recipe import AUTO_BASE, find_recipe

RECIPES = ("w4g128", AUTO_BASE, "w8")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Budget:
    """The most `bits` per weight of linears, or the most MB of linears that are read for a frame, and the
    `recipes` to choose from.

    One row of a product takes about the time in which its weight is read. So the bytes of a frame over the
    bandwidth of the memory are its time, on every machine; `voxport bench` prints both.
    """

    bits: float | None = None
    frame_mb: float | None = None
    recipes: tuple[str, ...] = RECIPES

    @classmethod
    def of(cls, target: Target, bits: float | None, frame_mb: float | None) -> "Budget":
        """With the recipes that the target can store."""
        schemes = {name: find_recipe(name).linears for name in RECIPES}
        held = tuple(name for name, scheme in schemes.items() if scheme and target.holds(scheme))
        return cls(bits, frame_mb, held)

    def __str__(self) -> str:
        return f"{self.bits:g} bits per weight" if self.bits else f"{self.frame_mb:g} MB per frame"

    def size(self, weights: int) -> float:
        """Bytes for so many weights."""
        return weights * self.bits / 8 if self.bits else 1e6 * (self.frame_mb or 0)


@dataclass(frozen=True)
class Choice:
    """A linear in one recipe: its number of weights, what it takes of the budget, in bytes, and the expected
    loss at the output of its graph.
    """

    path: str
    recipe: str
    weights: int
    size: float
    loss: float


def choose(options: Mapping[str, Sequence[Choice]], budget: float) -> list[Choice]:
    """One choice for each path, with the least sum of losses that is found within `budget` bytes.

    Begins with the smallest choices. As long as bytes are left, the linear changes for which a byte brings
    the most. Raises RecipeError if the smallest choices take more than the budget.
    """
    chosen = {path: min(some, key=lambda each: (each.size, each.loss)) for path, some in options.items()}
    left = budget - sum(each.size for each in chosen.values())
    if left < 0:
        raise RecipeError(f"the smallest recipes take {(budget - left) / budget:.2f} times the budget")
    while True:
        steps = [
            ((chosen[path].loss - each.loss) / (each.size - chosen[path].size), each)
            for path, some in options.items()
            for each in some
            if chosen[path].size < each.size <= chosen[path].size + left and each.loss < chosen[path].loss
        ]
        if not steps:
            return list(chosen.values())
        _, best = max(steps, key=lambda step: (step[0], step[1].path))
        left -= best.size - chosen[best.path].size
        chosen[best.path] = best


class Mixture:
    """The expected losses of the linears of a checkpoint, whose base recipe is `AUTO_BASE`.

    `rows_of(path)` are the inputs of a linear in floats, if they are known.
    """

    def __init__(
        self,
        resolved: Resolved,
        replays: Mapping[str, GraphReplay],
        rows_of: Callable[[str], InputRows | None],
        budget: Budget,
    ):
        self._resolved, self._replays, self._rows_of, self._budget = resolved, replays, rows_of, budget
        schemes = {name: find_recipe(name).linears for name in budget.recipes}
        self._schemes = {name: scheme for name, scheme in schemes.items() if scheme}
        self.options: dict[str, list[Choice]] = {}
        for part, graph, paths in self._parts():
            self._add(part, graph, paths)

    def chosen(self) -> list[Share]:
        """The mixture within the budget. Raises RecipeError."""
        budget, weights = self._budget, sum(some[0].weights for some in self.options.values())
        found = choose(self.options, budget.size(weights))
        plain = sum(each.loss for some in self.options.values() for each in some if each.recipe == AUTO_BASE)
        total, size = sum(each.loss for each in found), sum(each.size for each in found)
        text = "auto: %s of %s, expected loss %.2e; all %s: %.2e"
        used = f"{8 * size / weights:.3f}" if budget.bits else f"{size / 1e6:.1f}"
        log.info(text, used, budget, total, AUTO_BASE, plain)
        return [Share(each.path, each.recipe, each.weights, each.loss / total) for each in found]

    def _parts(self) -> Iterator[tuple[str, str, list[str]]]:
        """Name, graph and linears of each layer, and of each linear outside of layers, without linears that
        another rule names.
        """
        parts = [part for part in parts_to_sweep(self._resolved, layers=True) if part.name != ALL]
        for part in parts[len([part for part in parts if part.name in self._resolved.graphs]) :]:
            for graph, paths in part.paths.items():
                recipe = self._resolved.recipes[graph]
                base = [path for path in paths if recipe.scheme_for(path, False) == self._schemes[AUTO_BASE]]
                if found := [path for path in base if self._rows_of(path)]:
                    yield part.name, graph, found

    def _add(self, part: str, graph: str, paths: Sequence[str]) -> None:
        weight_of = weights_of(self._resolved.source.checkpoint, self._resolved.source.root())
        replay, found = self._replays[graph], list[Choice]()
        for path in paths:
            weight, rows = weight_of(path).float(), self._rows_of(path)
            assert rows
            unmoved = torch.zeros(weight.shape[1], dtype=torch.long)
            reads = prod(count for below, count in replay.reads.items() if is_below(path, (below,)))
            times = reads * replay.calls_per_frame if self._budget.frame_mb else 1
            for name, scheme in self._schemes.items():
                if scheme.reason_not_storable(weight.shape, False) is None:
                    size = scheme.storage(weight.shape).artifact * times
                    error = output_error([scheme], [weight], rows, unmoved)
                    found.append(Choice(path, name, weight.numel(), size, error))
        loss = replay.loss_of(frozenset(paths))
        unit = loss / sum(each.loss for each in found if each.recipe == AUTO_BASE)
        for each in found:
            self.options.setdefault(each.path, []).append(replace(each, loss=each.loss * unit))
        log.info("%s: loss %.2e", part, loss)


def rules_of(mixture: Iterable[Share]) -> tuple[str, ...]:
    """Rules for a recipe beside `AUTO_BASE`."""
    return tuple(f"{each.path}={each.recipe}" for each in mixture if each.recipe != AUTO_BASE)
