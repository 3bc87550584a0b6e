"""`Quantizer` applies a recipe to the weights of a model while they are loaded."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import nn

from voxport.bundle.errors import RecipeError
from voxport.quantize.calibration import Calibration
from voxport.quantize.modules import QuantizedModule
from voxport.quantize.recipe import Recipe
from voxport.quantize.search import SquaredErrors


@dataclass
class Quantizer:
    """Applies a recipe while weights are loaded, one weight at a time, and keeps the errors.

    `never(path)` is true for weights that no recipe may change. `calibration` has linears that it quantised.
    """

    recipe: Recipe
    never: Callable[[str], bool] = lambda path: False
    calibration: Calibration | None = None
    errors: dict[str, SquaredErrors] = field(default_factory=dict)  # by path

    def __call__(self, path: str, module: nn.Module, weight: torch.Tensor) -> QuantizedModule | None:
        """The module that replaces `module`, or None if the recipe keeps floating point.

        Raises RecipeError if the scheme rounds worse than to the nearest value.
        """
        is_table = isinstance(module, nn.Embedding)
        scheme = None if self.never(path) else self.recipe.scheme_for(path, is_table)
        if scheme is None:
            return None
        stored = self.calibration and self.calibration.restored(path, scheme, weight)
        found = stored or scheme.quantize(weight, path, is_table)
        if not stored and not found.errors.are_plausible:  # compensated errors of a weight are larger
            raise RecipeError(
                f"{path}: {scheme.describe()} changes the weight more than rounding to nearest can: "
                f"{found.errors}; this is a defect of the scheme"
            )
        self.errors[path], found.module.paths = found.errors, (path,)
        return found.module

    def report(self) -> dict[str, float]:
        """Relative weight error |w - q| / |w| with searched and with min-max scales.

        Empty if nothing was quantised.
        """
        total = sum(self.errors.values(), SquaredErrors())
        if not total.norm:
            return {}
        return {
            "weight_error": sqrt(total.searched / total.norm),
            "weight_error_min_max": sqrt(total.min_max / total.norm),
        }
