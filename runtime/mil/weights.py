"""The weight file of a package: a header, then blobs, each behind 64 bytes that describe it.

Layout (MILBlob's StorageFormat): header of a count (uint32), a version (uint32, 2) and 56 bytes; per blob a mark (uint32,
0xDEADBEEF), a data type (uint32), a size in bytes, the offset of its data and the bits that pad it (uint64 each). A value of
the program points at the description.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from runtime.mil.errors import PackageError
from runtime.mil.types import Scalar, TensorType

HEADER = struct.Struct("<II")
ENTRY = struct.Struct("<IIQQQ")
MARK, VERSION = 0xDEADBEEF, 2
NAMES = {  # MILBlob's numbers of data types
    1: "fp16",
    2: "fp32",
    3: "uint8",
    4: "int8",
    6: "int16",
    7: "uint16",
    8: "int4",
    9: "uint1",
    10: "uint2",
    11: "uint4",
    12: "uint3",
    13: "uint6",
    14: "int32",
    15: "uint32",
}


@dataclass(frozen=True)
class Packed:
    """Numbers of less than a byte as a mapped file holds them: unpacked whenever they are used, they take up to eight times as much."""

    file: mmap.mmap
    start: int
    size_in_bytes: int
    kind: TensorType

    @property
    def size(self) -> int:
        return prod(self.kind.fixed or ())

    def unpack(self) -> np.ndarray:
        end = self.start + self.size_in_bytes
        values = unpack(memoryview(self.file)[self.start : end], self.size, self.kind.scalar).reshape(
            self.kind.fixed or ()
        )
        if hasattr(mmap, "MADV_DONTNEED"):  # the system may have its pages back
            first = self.start // mmap.PAGESIZE * mmap.PAGESIZE
            self.file.madvise(mmap.MADV_DONTNEED, first, end - first)
        return values


class WeightFile:
    """Mapped, never read whole. Raises PackageError where the file is missing, cut or something else."""

    def __init__(self, path: Path):
        self._path = path
        self._tensors: dict[
            tuple[int, TensorType], np.ndarray | Packed
        ] = {}  # functions that share a weight get one
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except OSError as error:
            raise PackageError(
                f"{path}: cannot be read: {error.strerror}; the program takes weights from it"
            ) from None
        if len(self._bytes) < 64 or HEADER.unpack_from(self._bytes)[1] != VERSION:
            raise PackageError(f"{path}: no weight file of version {VERSION}")

    def tensor(self, offset: int, kind: TensorType) -> np.ndarray | Packed:
        """The blob described at `offset`, which must be what the program says of it."""
        if (offset, kind) not in self._tensors:
            self._tensors[offset, kind] = self._read(offset, kind)
        return self._tensors[offset, kind]

    def _read(self, offset: int, kind: TensorType) -> np.ndarray | Packed:
        where = f"{self._path}: blob at {offset}"
        if offset < 64 or offset + 64 > len(self._bytes):
            raise PackageError(f"{where}: lies outside the file of {len(self._bytes)} bytes")
        mark, number, size, start, padding = ENTRY.unpack_from(self._bytes, offset)
        if mark != MARK:
            raise PackageError(f"{where}: no description of a blob")
        if start + size > len(self._bytes):
            raise PackageError(
                f"{where}: its {size} bytes from {start} lie outside the file of {len(self._bytes)} bytes"
            )
        if NAMES.get(number) != kind.scalar.name and (NAMES.get(number), kind.scalar.name) != (
            "uint8",
            "bool",
        ):
            raise PackageError(
                f"{where}: holds {NAMES.get(number, f'type {number}')}, the program says {kind}"
            )
        if kind.fixed is None:
            raise PackageError(f"{where}: the program does not say its shape")
        count, bits = prod(kind.fixed), kind.scalar.bits
        if size != -(-count * bits // 8) or padding != (size * 8 - count * bits if bits < 8 else 0):
            raise PackageError(f"{where}: has {size} bytes, the program says {kind}")
        if bits < 8 and isinstance(self._bytes, mmap.mmap):
            return Packed(self._bytes, start, size, kind)
        return unpack(memoryview(self._bytes)[start : start + size], count, kind.scalar).reshape(kind.fixed)


def unpack(data: memoryview | bytes, count: int, scalar: Scalar) -> np.ndarray:
    """`count` values of a scalar type from little-endian bytes; narrower ones than a byte lie packed, the lowest bits first."""
    if scalar.bits >= 8:
        return np.frombuffer(data, np.dtype(scalar.held).newbyteorder("<"), count)
    if scalar.bits == 4:
        return _nibbles(data, scalar.signed)[:count].astype(scalar.held, copy=False)
    values = unpack_bits(data, count, scalar.bits)
    if scalar.signed:
        values = values.astype(np.int16) - ((values >> (scalar.bits - 1)).astype(np.int16) << scalar.bits)
    return values.astype(scalar.held)


def _nibbles(data: memoryview | bytes, signed: bool) -> np.ndarray:
    """int8: two numbers a byte, the low one first."""
    pairs = np.frombuffer(data, np.uint8).astype("<u2")
    pairs |= pairs << 4
    pairs &= 0x0F0F
    values = pairs.view(np.int8)
    if signed:
        values ^= 8
        values -= 8
    return values


def unpack_bits(data: memoryview | bytes, count: int, width: int) -> np.ndarray:
    """`count` unsigned numbers of `width` bits (at most 8), packed without gaps, the lowest bits first."""
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little", count=count * width).reshape(
        count, width
    )
    return bits @ (1 << np.arange(width, dtype=np.uint8)).astype(np.uint8)
