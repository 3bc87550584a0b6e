"""The base class of modules that replace a linear or a table, and the error of their weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import nn

from quantize.schemes.base import Scheme


@dataclass(frozen=True)
class SquaredErrors:
    """Sums of squares over weights w with quantised values q.

    searched, min_max: |w - q|² with searched and with plain min-max scales.
    norm: |w|².
    """

    searched: float = 0.0
    min_max: float = 0.0
    norm: float = 0.0

    def __add__(self, other: "SquaredErrors") -> "SquaredErrors":
        return SquaredErrors(
            self.searched + other.searched, self.min_max + other.min_max, self.norm + other.norm
        )


class QuantizedModule(nn.Module):
    """Replaces a linear (x [..., K] -> [..., N]) or, if `is_table`, an embedding (ids [...] -> [..., D]).

    `weight` is a tensor of N rows. The loader assigns the checkpoint's bias to `bias`, and `forward` of a
    linear adds it.
    """

    is_table: ClassVar[bool] = False
    weight: torch.Tensor
    bias: nn.Parameter | None

    def __init__(self, scheme: Scheme):
        super().__init__()
        self.scheme = scheme
        self.register_parameter("bias", None)

    def pack(self) -> None:
        """Reduces the memory of a module that is only called from now on. Optional, not reversible."""

    def can_fuse(self, parts: Sequence[nn.Module]) -> bool:
        """Whether `fuse` takes these modules of the same class. False concatenates their outputs instead."""
        return False

    def fuse(self, parts: Sequence[Self]) -> Self:
        """One linear with the rows of all parts, in order, without bias."""
        raise NotImplementedError(f"{type(self).__name__} cannot be fused")


@dataclass(frozen=True)
class QuantizedWeight:
    """What `Scheme.quantize` returns."""

    module: QuantizedModule
    errors: SquaredErrors


def pack_modules(module: nn.Module) -> None:
    """Packs every quantised module below `module`. Packed modules can be called, but not lowered."""
    for part in module.modules():
        if isinstance(part, QuantizedModule):
            part.pack()
