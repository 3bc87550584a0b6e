"""A scheme of 6-bit integers in groups. Tests register it; no package file mentions it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
import torch.nn.functional as F

from voxport.quantize.modules import QuantizedModule, QuantizedWeight
from voxport.quantize.schemes import Scheme, Storage
from voxport.quantize.search import SquaredErrors


@dataclass(frozen=True)
class Int6Scheme(Scheme):
    """`scale * integer` is exact in float16, because Core ML computes this product at export in float16."""

    type: ClassVar[str] = "int6"

    bits: int = 6
    group: int = 32

    def quantize(
        self, weight: torch.Tensor, path: str, is_table: bool, importance: torch.Tensor | None = None
    ) -> QuantizedWeight:
        groups = weight.float().unflatten(1, (-1, self.group))
        scale = _short(groups.abs().amax(-1, keepdim=True).clamp(min=2.0**-14) / 31)
        integers = torch.round(groups / scale)
        error = float((groups - integers * scale).square().sum())
        bound = float((0.5 * scale.expand_as(groups)).square().sum())
        errors = SquaredErrors(error, error, float(groups.square().sum()), bound)
        return QuantizedWeight(Int6Linear(integers.to(torch.int8), scale, self), errors)

    def reason_not_storable(self, shape: Sequence[int], is_table: bool) -> str | None:
        return (
            f"groups of {self.group} do not divide the {shape[1]} inputs" if shape[1] % self.group else None
        )

    def storage(self, shape: Sequence[int]) -> Storage:
        size = prod(shape) * (1 + 4 / self.group)
        return Storage(size, size, size)

    def describe(self) -> str:
        return f"int6, groups of {self.group}"


def _short(scale: torch.Tensor) -> torch.Tensor:
    """The next larger values with 6 significant bits."""
    mantissa, exponent = torch.frexp(scale)
    return torch.ldexp((mantissa * 64).ceil() / 64, exponent)


class Int6Linear(QuantizedModule):
    """weight int8 [N, K / group, group], scale float32 [N, K / group, 1], in plain torch."""

    scale: torch.Tensor

    def __init__(self, integers: torch.Tensor, scale: torch.Tensor, scheme: Int6Scheme) -> None:
        super().__init__(scheme)
        self.register_buffer("weight", integers)
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, (self.weight * self.scale).flatten(1), self.bias)
