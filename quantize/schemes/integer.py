"""Symmetric integers with one scale per output channel, or one per group of weights along a row."""

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

BITS = (4, 8)  # the widths that the kernels of all targets take


@register_scheme
@dataclass(frozen=True)
class IntegerScheme(Scheme):
    """group: number of weights of a row that share a scale. None means one scale per row.

    activations: `kernel` leaves them to the target (integers on ONNX and XNNPACK, floats on Core ML). `int8`
        asks for dynamic 8-bit activations on every target, in plain operators if the target has no such
        kernel.
    """

    type: ClassVar[str] = "integer"

    group: int | None = None
    activations: str = "kernel"

    def __post_init__(self) -> None:
        group_is_valid = self.group is None or (isinstance(self.group, int) and self.group >= 1)
        if self.bits not in BITS or not group_is_valid or self.activations not in ("kernel", "int8"):
            raise RecipeError(
                f"{self}: expected bits 4 or 8, activations 'kernel' or 'int8', "
                "and a group of at least 1 or None"
            )

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest integer. 8 bits exclude -128, so that the negative of a weight is a weight."""
        return (-127, 127) if self.bits == 8 else (-(1 << (self.bits - 1)), (1 << (self.bits - 1)) - 1)

    def quantize(self, weight: torch.Tensor, path: str, is_table: bool) -> QuantizedWeight:
        from quantize.linear import QuantizedEmbedding, QuantizedLinear
        from quantize.module import QuantizedWeight
        from quantize.scales import search_scales

        self.check_shape(path, weight.shape, is_table)
        found = search_scales(weight, self.group, self.range)
        make = QuantizedEmbedding if is_table else QuantizedLinear
        return QuantizedWeight(make(found.integers, found.scale, self), found.errors)

    def misfit(self, shape: Sequence[int], is_table: bool) -> str | None:
        if self.group is None:
            return None
        if is_table:
            return "groups are for linears only, which excludes the table"
        columns = shape[-1]
        return f"groups of {self.group} do not divide the {columns} inputs" if columns % self.group else None

    def storage(self, shape: Sequence[int]) -> Storage:
        count = prod(shape)
        scales = count / (self.group or shape[-1])
        return Storage(
            artifact=count * self.bits / 8 + SCALE_BYTES * scales,
            loaded=count + 5 * scales,  # int8 integers; a float32 scale and an int8 zero point
            packed=count * self.bits / 8 + 4 * scales,
        )

    def integer_activations(self, kernel_is_integer: bool) -> bool:
        return kernel_is_integer or self.activations == "int8"

    def describe(self) -> str:
        scales = f"groups of {self.group}" if self.group else "per output channel"
        activations = ", int8 activations on every target" if self.activations == "int8" else ""
        return f"int{self.bits}, {scales}{activations}"
