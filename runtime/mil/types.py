"""Types of MIL values: scalar types as `MIL.proto` numbers them with their NumPy types, and tensor types."""

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.mil.errors import UnsupportedError

# The scalar type of an array is known only from the program, at run time: hence Any.
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ScalarType:
    """A scalar type: its name, NumPy type, and width on disk in bits.

    Values of fewer than 8 bits are packed on disk, the lowest bits first, and take one byte each in NumPy.
    """

    name: str
    dtype: type[np.generic]
    bits: int
    signed: bool = False

    @property
    def is_float(self) -> bool:
        return self.name.startswith(("fp", "bf"))


SCALARS = {
    1: ScalarType("bool", np.bool_, 8),
    2: ScalarType("string", np.str_, 0),
    10: ScalarType("fp16", np.float16, 16),
    11: ScalarType("fp32", np.float32, 32),
    12: ScalarType("fp64", np.float64, 64),
    21: ScalarType("int8", np.int8, 8, True),
    22: ScalarType("int16", np.int16, 16, True),
    23: ScalarType("int32", np.int32, 32, True),
    24: ScalarType("int64", np.int64, 64, True),
    25: ScalarType("int4", np.int8, 4, True),
    31: ScalarType("uint8", np.uint8, 8),
    32: ScalarType("uint16", np.uint16, 16),
    33: ScalarType("uint32", np.uint32, 32),
    34: ScalarType("uint64", np.uint64, 64),
    35: ScalarType("uint4", np.uint8, 4),
    36: ScalarType("uint2", np.uint8, 2),
    37: ScalarType("uint1", np.uint8, 1),
    38: ScalarType("uint6", np.uint8, 6),
    39: ScalarType("uint3", np.uint8, 3),
}
MAX_RANK = 16
MAX_VALUES = 2**33  # per tensor; the largest weight of a published model has 2^29
BY_NAME = {scalar.name: scalar for scalar in SCALARS.values()}


@dataclass(frozen=True)
class TensorType:
    """A scalar type and a shape. A size is None if it is unknown before the call.

    `shape` is None if the rank is unknown.
    """

    scalar: ScalarType
    shape: tuple[int | None, ...] | None

    @property
    def fixed(self) -> tuple[int, ...] | None:
        """The shape if every size is known, otherwise None."""
        sizes = tuple(size for size in self.shape or () if size is not None)
        return sizes if self.shape is not None and len(sizes) == len(self.shape) else None

    def fits(self, shape: tuple[int, ...]) -> bool:
        if self.shape is None:
            return True
        return len(shape) == len(self.shape) and all(
            declared in (None, size) for size, declared in zip(shape, self.shape, strict=True)
        )

    def __str__(self) -> str:
        sizes = ["?"] if self.shape is None else ["?" if size is None else str(size) for size in self.shape]
        return f"{self.scalar.name}[{', '.join(sizes)}]"


def tensor_type(message: Any) -> TensorType:
    """The type of a tensor, or of the tensor in a state.

    `message` is a protobuf `ValueType`, which has no type stubs: hence Any. Raises UnsupportedError for other
    types.
    """
    form = message.WhichOneof("type")
    if form == "stateType":
        return tensor_type(message.stateType.wrappedType)
    if form != "tensorType":
        raise UnsupportedError(f"a value of type {form}")
    tensor = message.tensorType
    if tensor.dataType not in SCALARS:
        raise UnsupportedError(f"a tensor of data type {tensor.dataType}")
    if any(size.unknown.variadic for size in tensor.dimensions):
        return TensorType(SCALARS[tensor.dataType], None)
    shape = tuple(
        size.constant.size if size.WhichOneof("dimension") == "constant" else None
        for size in tensor.dimensions
    )
    if len(shape) > MAX_RANK or prod(size for size in shape if size) > MAX_VALUES:
        raise UnsupportedError(f"a tensor of {len(shape)} axes {list(shape[:8])}")
    return TensorType(SCALARS[tensor.dataType], shape)
