"""Palettes: a weight is an index into a table of 2^bits values, one table per group of output channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from bundle.errors import RecipeError
from quantize.schemes.base import SCALE_BYTES, Scheme, Storage, register_scheme

if TYPE_CHECKING:
    import torch

    from quantize.module import QuantizedWeight


@register_scheme
@dataclass(frozen=True)
class PaletteScheme(Scheme):
    """channels: number of output channels (rows of the weight) that share a palette."""

    type: ClassVar[str] = "palette"
    needs_native_support: ClassVar[bool] = True

    channels: int

    def __post_init__(self) -> None:
        if not all(isinstance(n, int) for n in (self.bits, self.channels)) or not (
            1 <= self.bits <= 8 and self.channels >= 1
        ):
            raise RecipeError(f"{self}: expected 1 to 8 bits and at least 1 channel")

    def quantize(self, weight: torch.Tensor, path: str, is_table: bool) -> QuantizedWeight:
        from quantize.module import QuantizedWeight
        from quantize.palettes import PalettizedLinear, search_palette

        self.check_shape(path, weight.shape, is_table)
        found = search_palette(weight, self.bits, self.channels)
        return QuantizedWeight(PalettizedLinear(found.indices, found.palette, self), found.errors)

    def misfit(self, shape: Sequence[int], is_table: bool) -> str | None:
        if is_table:
            return "palettes are for linears only, which excludes the table"
        if shape[0] % self.channels:
            return f"palettes for {self.channels} channels do not divide the {shape[0]} outputs"
        return None

    def storage(self, shape: Sequence[int]) -> Storage:
        count = prod(shape)
        values = count / shape[-1] / self.channels * 2**self.bits
        loaded = count * 5 + 5 * values  # uint8 indices and the float32 weight that they select
        return Storage(count * self.bits / 8 + SCALE_BYTES * values, loaded, packed=loaded)

    def describe(self) -> str:
        return f"palettes of {2**self.bits} values for {self.channels} output channels"
