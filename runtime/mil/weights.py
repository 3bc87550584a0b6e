"""Reads the weight file of a package: `bundle.weight_blobs` defines its layout."""

import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from voxport.bundle.weight_blobs import BLOCK, ENTRY, HEADER, MARK, VERSION
from voxport.runtime.mil.types import Array, PackageError, ScalarType, TensorType, require

# MILBlob's numbers of data types.
NAMES = {
    1: "fp16",
    2: "fp32",
    4: "int8",
    6: "int16",
    7: "uint16",
    8: "int4",
    11: "uint4",
    14: "int32",
}


@dataclass(frozen=True)
class Packed:
    """A tensor of values narrower than a byte in a mapped file. It is unpacked at each use."""

    file: mmap.mmap
    start: int
    size_in_bytes: int
    type: TensorType

    @property
    def size(self) -> int:
        return prod(self.type.fixed or ())

    def unpack(self) -> Array:
        end = self.start + self.size_in_bytes
        values = unpack(memoryview(self.file)[self.start : end], self.size, self.type.scalar)
        if hasattr(mmap, "MADV_DONTNEED"):  # releases the pages that this read has loaded
            first = self.start // mmap.PAGESIZE * mmap.PAGESIZE
            self.file.madvise(mmap.MADV_DONTNEED, first, end - first)
        return values.reshape(self.type.fixed or ())


class WeightFile:
    """A memory-mapped weight file. Raises PackageError if it is missing, truncated or of another format."""

    def __init__(self, path: Path):
        self._path = path
        # Functions of a package that use the same weight share one array.
        self._tensors: dict[tuple[int, TensorType], Array | Packed] = {}
        try:
            with path.open("rb") as file:
                is_empty = path.stat().st_size == 0
                self._bytes = b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise PackageError(
                f"{path}: cannot be read: {error.strerror}; the program needs its weights"
            ) from None
        require(
            len(self._bytes) >= BLOCK and HEADER.unpack_from(self._bytes)[1] == VERSION,
            f"{path}: not a weight file of version {VERSION}",
            PackageError,
        )

    def tensor(self, offset: int, type: TensorType) -> Array | Packed:
        """The blob whose descriptor is at `offset`. Raises PackageError if its type is not as declared."""
        if (offset, type) not in self._tensors:
            self._tensors[offset, type] = self._read(offset, type)
        return self._tensors[offset, type]

    def _read(self, offset: int, type: TensorType) -> Array | Packed:
        where, file_size = f"{self._path}: blob at {offset}", len(self._bytes)
        require(
            BLOCK <= offset <= file_size - BLOCK,
            f"{where}: is outside the file of {file_size} bytes",
            PackageError,
        )
        mark, number, size, start, padding = ENTRY.unpack_from(self._bytes, offset)
        require(mark == MARK, f"{where}: not a blob descriptor", PackageError)
        outside = f"{size} bytes from {start} are outside the file of {file_size} bytes"
        require(start + size <= file_size, f"{where}: {outside}", PackageError)
        stored, declared = NAMES.get(number, f"type {number}"), type.scalar.name
        require(
            stored == declared,
            f"{where}: holds {stored}, the program declares {type}",
            PackageError,
        )
        if type.fixed is None:
            raise PackageError(f"{where}: the program declares no fixed shape")
        count, bits = prod(type.fixed), type.scalar.bits
        if size != -(-count * bits // 8) or padding != (size * 8 - count * bits if bits < 8 else 0):
            raise PackageError(f"{where}: has {size} bytes, the program declares {type}")
        if bits < 8 and isinstance(self._bytes, mmap.mmap):
            return Packed(self._bytes, start, size, type)
        return unpack(memoryview(self._bytes)[start : start + size], count, type.scalar).reshape(type.fixed)


def unpack(data: memoryview | bytes, count: int, scalar: ScalarType) -> Array:
    """Reads `count` little-endian values. The low half of a byte is the first of two 4-bit values."""
    if scalar.bits >= 8:
        return np.frombuffer(data, np.dtype(scalar.dtype).newbyteorder("<"), count)
    pairs = np.frombuffer(data, np.uint8).astype("<u2")
    pairs |= pairs << 4
    pairs &= 0x0F0F
    values = pairs.view(np.int8)
    if scalar.signed:
        values ^= 8
        values -= 8
    return values[:count].astype(scalar.dtype, copy=False)
