"""Inputs that a linear met."""

from dataclasses import dataclass
from functools import cached_property

import torch

from voxport.quantize.compensation import Factor, inverse_factors

HELD_OUT = 4  # one row in so many is for the choice


@dataclass(frozen=True)
class InputRows:
    """Inputs of a linear, float32: `fit` [R, K] to choose integers with, `held_out` to compare them with."""

    fit: torch.Tensor
    held_out: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor) -> "InputRows":
        """rows [R, K] of any float dtype"""
        rows = rows.float()
        is_held_out = torch.arange(len(rows)) % HELD_OUT == HELD_OUT - 1
        return cls(rows[~is_held_out], rows[is_held_out])

    @property
    def count(self) -> int:
        """Number of all rows."""
        return len(self.fit) + len(self.held_out)

    @cached_property
    def importance(self) -> torch.Tensor:
        """float32 [K]: E[x²] of each column, at least a millionth of the mean: no column is worth nothing."""
        found = self.fit.square().mean(0)
        return found.clamp_min(1e-6 * float(found.mean()) + 1e-30)

    @cached_property
    def factors(self) -> list[Factor]:
        """For `compensate`; they take as long as the compensation of a small weight."""
        return inverse_factors(self.fit)
