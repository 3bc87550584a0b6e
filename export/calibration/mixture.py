"""`--quant auto`: which linears get how many bits, from what each of them does to the output of its graph.

The error of a linear in a scheme is measured at its own output, on rows of the calibration that no search
saw. What an error does to the output of the graph is measured once for each layer: all its linears are
quantised, nothing else is, and the squared error of the output is divided by the sum of theirs. If errors of
different linears are not correlated, their squares add up: the expected loss of a mixture is the sum over its
linears.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from voxport.bundle.errors import RecipeError
from voxport.export.calibration.graph import GraphReplay, Rows, weights_of
from voxport.export.evaluation.sweep import ALL, parts_to_sweep
from voxport.export.resolve import Resolved
from voxport.export.targets.base import Target
from voxport.quantize.calibration import InputRows
from voxport.quantize.migration import output_error
from voxport.quantize.recipe import AUTO_BASE, find_recipe

RECIPES = ("w4g128", AUTO_BASE, "w8")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """A linear in one recipe: its bytes in an artifact, and the expected loss at the output of its graph."""

    path: str
    recipe: str
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
        raise RecipeError("the smallest recipes take more bits than that", field="bits")
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
    """The expected losses of the linears of a checkpoint, whose base recipe is `AUTO_BASE`."""

    def __init__(self, resolved: Resolved, target: Target, replays: Mapping[str, GraphReplay], rows: Rows):
        self._resolved, self._replays, self._rows = resolved, replays, rows
        schemes = {name: find_recipe(name).linears for name in RECIPES}
        self._schemes = {name: scheme for name, scheme in schemes.items() if scheme and target.holds(scheme)}
        self.weights = 0
        self.options: dict[str, list[Choice]] = {}
        for part, graph, paths in self._parts():
            self._add(part, graph, paths)

    def rules(self, bits: float) -> tuple[str, ...]:
        """Rules for at most so many bits per weight. Raises RecipeError."""
        chosen = choose(self.options, bits / 8 * self.weights)
        total = sum(each.loss for each in chosen)
        for each in sorted(chosen, key=lambda each: -each.loss):
            log.info("  %-60s %-7s %6.2f %% of the loss", each.path, each.recipe, 100 * each.loss / total)
        plain = sum(each.loss for some in self.options.values() for each in some if each.recipe == AUTO_BASE)
        size = 8 * sum(each.size for each in chosen) / self.weights
        log.info(
            "auto: %.3f bits per weight, expected loss %.2e; all %s: %.2e", size, total, AUTO_BASE, plain
        )
        return tuple(f"{each.path}={each.recipe}" for each in chosen if each.recipe != AUTO_BASE)

    def _parts(self) -> Iterator[tuple[str, str, list[str]]]:
        """Name, graph and linears of each layer, and of each linear outside of layers."""
        parts = [part for part in parts_to_sweep(self._resolved, layers=True) if part.name != ALL]
        for part in parts[len([part for part in parts if part.name in self._resolved.graphs]) :]:
            for graph, paths in part.paths.items():
                if found := [path for path in paths if path in self._rows]:
                    yield part.name, graph, found

    def _add(self, part: str, graph: str, paths: Sequence[str]) -> None:
        weight_of = weights_of(self._resolved.source.checkpoint, self._resolved.source.root())
        errors: dict[str, dict[str, float]] = {}
        for path in paths:
            weight, rows = weight_of(path), InputRows.of(self._rows[path])
            storable = {
                n: s for n, s in self._schemes.items() if s.reason_not_storable(weight.shape, False) is None
            }
            unmoved = torch.zeros(weight.shape[1], dtype=torch.long)
            errors[path] = {
                name: output_error([scheme], [weight.float()], rows, unmoved)
                for name, scheme in storable.items()
            }
            self.weights += weight.numel()
            self.options[path] = [
                Choice(path, name, scheme.storage(weight.shape).artifact, errors[path][name])
                for name, scheme in storable.items()
            ]
        base = sum(found[AUTO_BASE] for found in errors.values() if AUTO_BASE in found)
        found = self._replays[graph].loss_of(frozenset(paths))
        for path in paths:
            self.options[path] = [
                Choice(each.path, each.recipe, each.size, each.loss * found / base)
                for each in self.options[path]
            ]
        log.info("%s: loss %.2e", part, found)
