"""Types of values, as `MIL.proto` numbers them, and how each is held in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from runtime.mil.errors import UnsupportedError


@dataclass(frozen=True)
class Scalar:
    """`held` is the NumPy type of its arrays; `bits` are those on disk, of which fewer than 8 are packed, the lowest first."""

    name: str
    held: Any
    bits: int
    signed: bool = False

    @property
    def is_float(self) -> bool:
        return self.name.startswith(("fp", "bf"))


SCALARS = {
    1: Scalar("bool", np.bool_, 8),
    2: Scalar("string", np.str_, 0),
    10: Scalar("fp16", np.float16, 16),
    11: Scalar("fp32", np.float32, 32),
    12: Scalar("fp64", np.float64, 64),
    21: Scalar("int8", np.int8, 8, True),
    22: Scalar("int16", np.int16, 16, True),
    23: Scalar("int32", np.int32, 32, True),
    24: Scalar("int64", np.int64, 64, True),
    25: Scalar("int4", np.int8, 4, True),
    31: Scalar("uint8", np.uint8, 8),
    32: Scalar("uint16", np.uint16, 16),
    33: Scalar("uint32", np.uint32, 32),
    34: Scalar("uint64", np.uint64, 64),
    35: Scalar("uint4", np.uint8, 4),
    36: Scalar("uint2", np.uint8, 2),
    37: Scalar("uint1", np.uint8, 1),
    38: Scalar("uint6", np.uint8, 6),
    39: Scalar("uint3", np.uint8, 3),
}
MOST_AXES, MOST_VALUES = 16, 2**33  # of one tensor; the largest weight of a published model has 2^29
BY_NAME = {scalar.name: scalar for scalar in SCALARS.values()}


@dataclass(frozen=True)
class TensorType:
    """A scalar type and a shape; None where a size is not known before the call, `shape` None where the rank is not."""

    scalar: Scalar
    shape: tuple[int | None, ...] | None

    @property
    def fixed(self) -> tuple[int, ...] | None:
        """The shape where every size is known."""
        sizes = tuple(size for size in self.shape or () if size is not None)
        return sizes if self.shape is not None and len(sizes) == len(self.shape) else None

    def fits(self, shape: tuple[int, ...]) -> bool:
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(
            want in (None, size) for size, want in zip(shape, self.shape, strict=True)
        )

    def __str__(self) -> str:
        sizes = (
            "?"
            if self.shape is None
            else ", ".join("?" if size is None else str(size) for size in self.shape)
        )
        return f"{self.scalar.name}[{sizes}]"


def tensor_type(proto: Any) -> TensorType:
    """From a `ValueType`. Raises UnsupportedError on types that are no tensor (or a state of one)."""
    kind = proto.WhichOneof("type")
    if kind == "stateType":
        return tensor_type(proto.stateType.wrappedType)
    if kind != "tensorType":
        raise UnsupportedError(f"a value of type {kind}")
    tensor = proto.tensorType
    if tensor.dataType not in SCALARS:
        raise UnsupportedError(f"a tensor of data type {tensor.dataType}")
    if any(size.unknown.variadic for size in tensor.dimensions):
        return TensorType(SCALARS[tensor.dataType], None)
    shape = tuple(
        size.constant.size if size.WhichOneof("dimension") == "constant" else None
        for size in tensor.dimensions
    )
    if len(shape) > MOST_AXES or prod(size for size in shape if size) > MOST_VALUES:
        raise UnsupportedError(f"a tensor of {len(shape)} axes {list(shape[:8])}")
    return TensorType(SCALARS[tensor.dataType], shape)
