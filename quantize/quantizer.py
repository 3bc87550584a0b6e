"""Applies a recipe while weights are loaded, one weight at a time, and adds up the errors."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import nn

from quantize.module import QuantizedModule, SquaredErrors
from quantize.recipe import Recipe


@dataclass
class Quantizer:
    """Called for each linear and embedding as it is loaded.

    `never(path)` is true for weights that no recipe may change.
    """

    recipe: Recipe
    never: Callable[[str], bool] = lambda path: False
    errors: SquaredErrors = field(default_factory=SquaredErrors)
    quantized: list[str] = field(default_factory=list)

    def __call__(self, path: str, module: nn.Module, weight: torch.Tensor) -> QuantizedModule | None:
        """The module that replaces `module`, or None if the recipe keeps floating point."""
        is_table = isinstance(module, nn.Embedding)
        scheme = None if self.never(path) else self.recipe.scheme_for(path, is_table)
        if scheme is None:
            return None
        found = scheme.quantize(weight, path, is_table)
        self.errors += found.errors
        self.quantized.append(path)
        return found.module

    def report(self) -> dict[str, float]:
        """Relative weight error |w - q| / |w| with searched and with min-max scales.

        Empty if nothing was quantised.
        """
        if not self.errors.norm:
            return {}
        return {
            "weight_error": sqrt(self.errors.searched / self.errors.norm),
            "weight_error_min_max": sqrt(self.errors.min_max / self.errors.norm),
        }
