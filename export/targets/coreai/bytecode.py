"""The weights in a bytecode file of MLIR: their bytes by name, and names in place of the compiler's.

https://mlir.llvm.org/docs/BytecodeFormat/ defines the format. Core AI has no interface that reads a weight.
"""

import mmap
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from voxport.bundle.errors import ExportError

MAGIC = b"ML\xefR"
STRINGS, RESOURCES, RESOURCE_OFFSETS = 0, 5, 6  # identifiers of sections
IS_ALIGNED = 0x80  # flag of an identifier
BLOB = 0  # kind of a resource
HASHED = re.compile(rb"resource_\d+")  # the compiler's name of a weight


class Section(NamedTuple):
    """Where a section of the file begins, with its identifier and length, and where its content is."""

    begin: int
    start: int
    stop: int


class Bytecode:
    """A mapped file. Raises ExportError if it is not bytecode."""

    def __init__(self, path: Path):
        with path.open("rb") as file:
            self.data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        if self.data[:4] != MAGIC:
            raise ExportError(f"{path}: is no MLIR bytecode")
        _, at = varint(self.data, len(MAGIC))
        while self.data[at]:  # the name of the producer ends with a zero
            at += 1
        self.sections: dict[int, Section] = {}
        at += 1
        while at < len(self.data):
            begin, kind = at, self.data[at]
            size, at = varint(self.data, at + 1)
            if kind & IS_ALIGNED:
                alignment, at = varint(self.data, at)
                at += -at % alignment
            self.sections[kind & ~IS_ALIGNED] = Section(begin, at, at + size)
            at += size

    def strings(self) -> list[bytes]:
        """Without their last byte, a zero. The file has their sizes in reverse order."""
        section = self.sections[STRINGS]
        count, at = varint(self.data, section.start)
        sizes = []
        for _ in range(count):
            size, at = varint(self.data, at)
            sizes.append(size)
        found = []
        for size in reversed(sizes):
            found.append(bytes(self.data[at : at + size - 1]))
            at += size
        return found

    def blobs(self) -> dict[str, np.ndarray]:
        """The bytes of every weight by name."""
        found = dict[str, np.ndarray]()
        if RESOURCES not in self.sections:
            return found
        names, place = self.strings(), self.sections[RESOURCES].start
        _, at, stop = self.sections[RESOURCE_OFFSETS]
        _, at = varint(self.data, at)
        while at < stop:
            _, at = varint(self.data, at)  # the dialect of the group
            count, at = varint(self.data, at)
            for _ in range(count):
                name, at = varint(self.data, at)
                size, at = varint(self.data, at)
                if self.data[at] == BLOB:
                    alignment, start = varint(self.data, place)
                    length, start = varint(self.data, start)
                    start += -start % alignment
                    found[names[name].decode()] = np.frombuffer(self.data[start : start + length], np.uint8)
                at, place = at + 1, place + size
        return found


def varint(data: memoryview, at: int) -> tuple[int, int]:
    """A number and the place after it. The zeros at the end of its first byte count the bytes that follow."""
    first = data[at]
    if first == 0:
        return int.from_bytes(data[at + 1 : at + 9], "little"), at + 9
    count = (first & -first).bit_length()
    return int.from_bytes(data[at : at + count], "little") >> count, at + count


def _as_varint(value: int) -> bytes:
    count = max(1, -(-value.bit_length() // 7))
    return ((value << count) | (1 << (count - 1))).to_bytes(count, "little")


def rename(path: Path, functions: Iterable[str]) -> None:
    """Numbers what the compiler has named: weights, by a hash that differs from process to process, and
    `functions`, by random letters behind the last `_`.

    The section of strings is behind the weights, so only the end of the file is written again.
    """
    code = Bytecode(path)
    section, random = code.sections[STRINGS], {name.encode() for name in functions}
    strings = [
        name.rpartition(b"_")[0] + b"_%d" % index if name in random or HASHED.fullmatch(name) else name
        for index, name in enumerate(code.strings())
    ]
    content = b"".join(
        (
            _as_varint(len(strings)),
            *(_as_varint(len(string) + 1) for string in reversed(strings)),
            *(string + b"\0" for string in strings),
        )
    )
    rest = bytes(code.data[section.stop :])
    with path.open("r+b") as file:
        file.truncate(section.begin)
        file.seek(section.begin)
        file.write(bytes([STRINGS]) + _as_varint(len(content)) + content + rest)


if __name__ == "__main__":  # a process of its own, which a damaged asset ends
    from coreai.authoring import AIModelAsset

    _ = AIModelAsset.load(Path(sys.argv[1])).program
