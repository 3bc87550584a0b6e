"""Applies a recipe while weights are loaded, one weight at a time, and keeps account of what it did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt

import torch
from torch import nn

from quantize.linear import QuantizedEmbedding, QuantizedLinear
from quantize.palettes import PalettizedLinear, PalettizedWeight, search_palette
from quantize.recipe import Recipe
from quantize.scales import search_scales


@dataclass
class Quantizer:
    """Called for each linear and embedding as it is loaded; `never(path)` says what no recipe may touch (constants)."""

    recipe: Recipe
    never: Callable[[str], bool] = lambda path: False
    squared_error: float = 0.0
    min_max_squared_error: float = 0.0
    squared_norm: float = 0.0
    quantized: list[str] = field(default_factory=list)

    def __call__(self, path: str, module: nn.Module, weight: torch.Tensor) -> nn.Module | None:
        """The module that replaces `module`, or None where the recipe keeps floats."""
        is_table = isinstance(module, nn.Embedding)
        scheme = None if self.never(path) else self.recipe.scheme_for(path, is_table)
        if scheme is None:
            return None
        found = (
            search_palette(weight, scheme, path) if scheme.channels else search_scales(weight, scheme, path)
        )
        self.squared_error += found.squared_error
        self.min_max_squared_error += found.min_max_squared_error
        self.squared_norm += found.squared_norm
        self.quantized.append(path)
        if isinstance(found, PalettizedWeight):
            return PalettizedLinear(found.indices, found.palette, scheme)
        return (QuantizedEmbedding if is_table else QuantizedLinear)(found.integers, found.scale, scheme)

    def report(self) -> dict[str, float]:
        """Relative weight error |w - q·s| / |w| with searched and with plain min-max scales, where anything was quantised."""
        if not self.squared_norm:
            return {}
        return {
            "weight_error": sqrt(self.squared_error / self.squared_norm),
            "weight_error_min_max": sqrt(self.min_max_squared_error / self.squared_norm),
        }
