"""Checks of an ExecuTorch program: its file before it is loaded, its methods against the manifest.

The runtime verifies the flatbuffer itself. It does not compare its segments with the size of the file, and a
tensor of another size than the program was made for ends the process.
"""

import struct
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from voxport.bundle.errors import IntegrityError, first_line
from voxport.bundle.manifest import ComponentEntry
from voxport.bundle.spec import READ_METHOD, WRITE_METHOD, Bounds, StateSpec, TensorSpec

# flatbuffer: offset of the root table, identifier; extended header: magic, its size, size of the flatbuffer,
# start of the segments and their size
HEADER = struct.Struct("<I4s4sIQQQ")
FILE_IDENTIFIER, MAGIC = b"ET12", b"eh00"
DTYPES = {"int32": 3, "int64": 4, "float16": 5, "float32": 6}  # ScalarType of ExecuTorch
TensorType = tuple[tuple[int, ...], int]  # sizes and ScalarType


def check_file(path: Path) -> None:
    """Raises IntegrityError if the parts that the header names do not fill the file."""
    with path.open("rb") as file:
        content = file.read(HEADER.size)
    length = path.stat().st_size
    if len(content) < HEADER.size:
        raise IntegrityError(f"{path}: {length} bytes, expected a program; fetch or export the bundle again")
    _, identifier, magic, header, program, start, segments = HEADER.unpack(content)
    is_program = identifier == FILE_IDENTIFIER and magic == MAGIC and header >= HEADER.size - 8
    end = start + segments if segments else program
    if not is_program or not program <= length == end or (segments and start < program):
        raise IntegrityError(
            f"{path}: the header names a program of {program} bytes and segments of {segments} bytes from "
            f"{start}, the file has {length} bytes; fetch or export the bundle again"
        )


def check_method(path: Path, metadata: Any, entries: Collection[ComponentEntry]) -> None:
    """Raises IntegrityError if a method does not take and return what the manifest says.

    `metadata` is ExecuTorch's, without types; its sizes are the largest that the program was made for.
    `entries` are the components of the program.
    """
    name = metadata.name()
    try:
        inputs = _types(metadata.num_inputs(), metadata.input_tensor_meta)
        outputs = _types(metadata.num_outputs(), metadata.output_tensor_meta)
    except (IndexError, RuntimeError, ValueError) as error:  # a damaged program
        raise IntegrityError(f"{path}: method {name}: {first_line(error)}; export the bundle again") from None
    for entry in entries:
        signature, states = entry.signature, [_block(entry, state) for state in entry.signature.states]
        if name == entry.entry_point:
            pairs = [
                ("inputs", inputs, [_largest(spec, signature.dims) for spec in signature.inputs]),
                ("outputs", outputs, [_largest(spec, signature.dims) for spec in signature.outputs]),
            ]
        elif name == entry.graph + READ_METHOD:
            pairs = [("states", outputs, states)]
        elif name == entry.graph + WRITE_METHOD:
            pairs = [("states", inputs[-len(states) :], states)]
        else:
            continue
        for what, found, expected in pairs:
            if not _types_match(expected, found, exactly=what == "states"):
                raise IntegrityError(
                    f"{path}: method {name} has {what} {_text(found)}, the manifest says {_text(expected)} "
                    f"for {entry.name}; export the bundle again"
                )


def _types(count: int, metadata: Callable[[int], Any]) -> list[TensorType]:
    return [(tuple(metadata(index).sizes()), metadata(index).dtype()) for index in range(count)]


def _largest(spec: TensorSpec, dims: dict[str, Bounds]) -> TensorType:
    """The largest sizes. A multiple of a named dimension, as outputs have it, counts as 1."""
    sizes = [dims.get(size, (1, 1))[1] if isinstance(size, str) else size for size in spec.shape]
    return tuple(sizes), DTYPES[spec.dtype]


def _block(entry: ComponentEntry, state: StateSpec) -> TensorType:
    """What one call reads or writes of a state: some rows of a cache, the whole of any other."""
    sizes = list(state.shape)
    if state.cache:
        sizes[state.cache.row_axis] = entry.state_rows_per_call
    return tuple(sizes), DTYPES[state.dtype]


def _types_match(expected: list[TensorType], found: list[TensorType], exactly: bool) -> bool:
    if exactly or len(expected) != len(found):
        return expected == found
    return all(
        dtype == found_dtype
        and len(sizes) == len(found_sizes)
        and all(size <= limit for size, limit in zip(sizes, found_sizes, strict=True))
        for (sizes, dtype), (found_sizes, found_dtype) in zip(expected, found, strict=True)
    )


def _text(types: list[TensorType]) -> str:
    names = {number: name for name, number in DTYPES.items()}
    return ", ".join(f"{names.get(dtype, dtype)} {list(sizes)}" for sizes, dtype in types)[:500] or "none"
