"""The interface of a scheme, and the table of scheme types."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from bundle.errors import RecipeError

if TYPE_CHECKING:
    import torch

    from quantize.module import QuantizedWeight

SCALE_BYTES = 2  # a scale (bfloat16) or a palette value (float16) in an artifact


@dataclass(frozen=True)
class Storage:
    """Bytes of one weight: in an artifact, in memory as loaded, and in memory when packed."""

    artifact: float
    loaded: float
    packed: float


@dataclass(frozen=True)
class Scheme(ABC):
    """How one weight is stored. A subclass is a frozen dataclass, registered by `register_scheme`.

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
    def quantize(self, weight: torch.Tensor, path: str, is_table: bool) -> QuantizedWeight:
        """Returns the module that replaces the linear or table at `path`, and its weight's squared errors.

        `weight` [N, K] is finite and of any float dtype. Raises RecipeError if the scheme does not support
        the shape.
        """

    @abstractmethod
    def storage(self, shape: Sequence[int]) -> Storage:
        """Bytes of a weight of this shape."""

    @abstractmethod
    def describe(self) -> str:
        """A few words for `export list`."""

    def misfit(self, shape: Sequence[int], is_table: bool) -> str | None:
        """Why a weight of this shape cannot be stored, or None. Callers append "of" and the weight's name."""
        return None

    def check_shape(self, path: str, shape: Sequence[int], is_table: bool) -> None:
        """Raises RecipeError that names the weight if its shape does not fit."""
        if reason := self.misfit(shape, is_table):
            raise RecipeError(f"{reason} of {path}; add a rule that keeps this weight in floating point")

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

    def to_dict(self) -> dict[str, Any]:
        """`type` and the fields, as in the manifest."""
        return {"type": self.type, **asdict(self)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, without `type`. Raises RecipeError if a field is missing or unknown."""
        try:
            return cls(**fields)
        except TypeError as error:
            raise RecipeError(f"scheme {cls.type}: {error}") from None


SCHEMES: dict[str, type[Scheme]] = {}
S = TypeVar("S", bound=type[Scheme])


def register_scheme(scheme: S) -> S:
    """Class decorator that adds a scheme to `SCHEMES`. Raises ValueError if the type name is taken."""
    if SCHEMES.setdefault(scheme.type, scheme) is not scheme:
        raise ValueError(f"scheme type {scheme.type!r} is registered twice")
    return scheme


def scheme_from_dict(fields: Mapping[str, Any]) -> Scheme:
    """The scheme with this `type` and these fields. Raises RecipeError on an unknown type or field."""
    kind = fields.get("type")
    if kind not in SCHEMES:
        raise RecipeError(f"scheme type {kind!r} is unknown; known types: {', '.join(SCHEMES)}")
    return SCHEMES[kind].from_dict({name: value for name, value in fields.items() if name != "type"})
