"""Schemes: the ways to store one weight. This module does not import torch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar, Literal

from voxport.bundle.manifest import SchemeEntry

if TYPE_CHECKING:
    import torch

    from voxport.quantize.inputs import InputRows
    from voxport.quantize.modules import QuantizedModule, QuantizedWeight

    ModuleClass = type[QuantizedModule]

SCALE_BYTES = 2  # a scale (bfloat16) or a palette value (float16) in an artifact


@dataclass(frozen=True)
class Storage:
    """Bytes of one weight: in an artifact, in memory as loaded, and in memory when packed."""

    artifact: float
    loaded: float
    packed: float


@dataclass(frozen=True)
class Scheme(ABC):
    """How one weight is stored. A subclass is a frozen dataclass.

    type: name of the subclass in manifests.
    needs_native_support: whether only targets that name the type in `Target.native_schemes` can store such
        weights. False is right for a scheme whose module computes with plain torch operators, which every
        target lowers.
    bits: bits of one stored weight, without scales.
    """

    type: ClassVar[str]
    needs_native_support: ClassVar[bool] = False

    bits: int

    @abstractmethod
    def quantize(
        self, weight: torch.Tensor, path: str, is_table: bool, importance: torch.Tensor | None = None
    ) -> QuantizedWeight:
        """Returns the module that replaces the linear or table at `path`, and its weight's squared errors.

        `weight` [N, K] is finite, of any float dtype, and of a shape that the scheme supports. `importance`
        [K] is E[x²] of each input of a linear.
        """

    def compensate(
        self, found: QuantizedModule, weight: torch.Tensor, rows: InputRows
    ) -> QuantizedModule | None:
        """A module for the same weight whose columns make up for each other's errors over inputs `rows`, or
        None if the scheme cannot do that. `found` is what `quantize` returned for their importance.
        """
        return None

    def linear_class(self) -> ModuleClass | None:
        """The class of the module that replaces a linear. None: a calibration cannot store such weights."""
        return None

    @abstractmethod
    def storage(self, shape: Sequence[int]) -> Storage:
        """Bytes of a weight of this shape."""

    @abstractmethod
    def describe(self) -> str:
        """A few words for `export list`."""

    def reason_not_storable(self, shape: Sequence[int], is_table: bool) -> str | None:
        """Why a weight of this shape cannot be stored, or None. Callers append "of" and the weight's name."""
        return None

    def integer_activations(self, kernel_is_integer: bool) -> bool:
        """Whether a linear rounds its activations to integers, given whether the target's own kernel does."""
        return False

    @property
    def min_correlation(self) -> float:
        """Least correlation of an output with full precision: 0.99 for 8 bits, 0.9 for 4 bits.

        This is a sanity limit, not a quality claim. Rounding changes a weight by about 0.7 % at 8 bits and
        9 % at 4 bits, which is a factor of 13, and about ten linears follow each other. The lost correlation
        grows by a factor of 10 over the same 4 bits. Other widths are on the same exponential: 0.97 for 6
        bits, 0.68 for 2.
        """
        return float(1 - 10 ** (-self.bits / 4))

    def to_entry(self) -> SchemeEntry:
        """`type` and the fields, for the manifest."""
        return SchemeEntry(type=self.type, **asdict(self))


@dataclass(frozen=True)
class IntegerScheme(Scheme):
    """Symmetric integers of 4 or 8 bits with one scale per output channel, or per group along a row.

    group: number of weights of a row that share a scale. None means one scale per row.
    activations: `kernel` leaves them to the target (integers on ONNX and XNNPACK, floats for Core ML and
        Core AI). `int8` asks for dynamic 8-bit activations on every target, in plain operators if the
        target has no such kernel. `float` asks for floats, which XNNPACK does not have.
    """

    type: ClassVar[str] = "integer"

    group: int | None = None
    activations: Literal["kernel", "int8", "float"] = "kernel"

    @property
    def range(self) -> tuple[int, int]:
        """Smallest and largest integer. 8 bits exclude -128, so that the negative of a weight is a weight."""
        return (-127, 127) if self.bits == 8 else (-8, 7)

    def quantize(
        self, weight: torch.Tensor, path: str, is_table: bool, importance: torch.Tensor | None = None
    ) -> QuantizedWeight:
        from voxport.quantize.modules import QuantizedEmbedding, QuantizedLinear, QuantizedWeight
        from voxport.quantize.search import search_scales

        found = search_scales(weight, self.group, self.range, importance)
        make = QuantizedEmbedding if is_table else QuantizedLinear
        return QuantizedWeight(make(found.integers, found.scale, self), found.errors)

    def linear_class(self) -> ModuleClass:
        from voxport.quantize.modules import QuantizedLinear

        return QuantizedLinear

    def compensate(
        self, found: QuantizedModule, weight: torch.Tensor, rows: InputRows
    ) -> QuantizedModule | None:
        from voxport.quantize.compensation import IntegerRounder, compensate
        from voxport.quantize.modules import QuantizedLinear

        assert isinstance(found, QuantizedLinear)
        scale = found.scale.clone()
        rounder = lambda part: IntegerRounder(scale[part], found.block, self.range, rows.importance)
        return QuantizedLinear(compensate(weight, rows.factors, rounder).char(), scale, self)

    def reason_not_storable(self, shape: Sequence[int], is_table: bool) -> str | None:
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
        return kernel_is_integer if self.activations == "kernel" else self.activations == "int8"

    def describe(self) -> str:
        scales = f"groups of {self.group}" if self.group else "per output channel"
        asked = "" if self.activations == "kernel" else f", {self.activations} activations on every target"
        return f"int{self.bits}, {scales}{asked}"


@dataclass(frozen=True)
class PaletteScheme(Scheme):
    """Indices into a table of 2^bits values, one table per group of output channels.

    channels: number of output channels (rows of the weight) that share a palette.
    """

    type: ClassVar[str] = "palette"
    needs_native_support: ClassVar[bool] = True

    channels: int

    def quantize(
        self, weight: torch.Tensor, path: str, is_table: bool, importance: torch.Tensor | None = None
    ) -> QuantizedWeight:
        from voxport.quantize.modules import PalettizedLinear, QuantizedWeight
        from voxport.quantize.search import search_palette

        found = search_palette(weight, self.bits, self.channels, importance)
        return QuantizedWeight(PalettizedLinear(found.indices, found.palette, self), found.errors)

    def linear_class(self) -> ModuleClass:
        from voxport.quantize.modules import PalettizedLinear

        return PalettizedLinear

    def compensate(
        self, found: QuantizedModule, weight: torch.Tensor, rows: InputRows
    ) -> QuantizedModule | None:
        from voxport.quantize.compensation import PaletteRounder, compensate
        from voxport.quantize.modules import PalettizedLinear

        assert isinstance(found, PalettizedLinear)
        channels, palette = found.channels, found.palette

        def rounder(part: slice) -> PaletteRounder:
            return PaletteRounder(palette[part.start // channels : -(-part.stop // channels)], channels)

        return PalettizedLinear(compensate(weight, rows.factors, rounder).byte(), found.palette, self)

    def reason_not_storable(self, shape: Sequence[int], is_table: bool) -> str | None:
        if is_table:
            return "palettes are for linears only, which excludes the table"
        if shape[0] % self.channels:
            return f"palettes for {self.channels} channels do not divide the {shape[0]} outputs"
        return None

    def storage(self, shape: Sequence[int]) -> Storage:
        count = prod(shape)
        values = count / shape[-1] / self.channels * 2**self.bits
        return Storage(
            artifact=count * self.bits / 8 + SCALE_BYTES * values,
            loaded=count + 4 * values,  # uint8 indices
            packed=count * 2 + 4 * values,  # the float16 values that they select
        )

    def describe(self) -> str:
        return f"palettes of {2**self.bits} values for {self.channels} output channels"
