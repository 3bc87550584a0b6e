"""Checks of an ONNX file before a session is made: without control flow, and with the inputs of the manifest.

Reads the few fields of the protobuf message that it needs, because the package `onnx` is not installed where
a bundle runs. Numbers of fields are those of onnx.proto.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from voxport.bundle.errors import IntegrityError
from voxport.bundle.manifest import ComponentEntry
from voxport.bundle.spec import ONNX_PAST, ONNX_PRESENT, Dimension

MAX_GRAPH_BYTES = 2**27  # the published models have under 20 MB
MODEL_GRAPH, MODEL_FUNCTIONS = 7, 25
GRAPH_NODE, GRAPH_INITIALIZER, GRAPH_SPARSE_INITIALIZER = 1, 5, 15
NODE_OP_TYPE, NODE_ATTRIBUTE = 4, 5
ATTRIBUTE_TENSOR, ATTRIBUTE_GRAPH, ATTRIBUTE_TENSORS, ATTRIBUTE_GRAPHS = 5, 6, 10, 11
ATTRIBUTE_SPARSE_TENSOR, ATTRIBUTE_SPARSE_TENSORS = 22, 23
TENSOR_EXTERNAL_DATA = 13
ENTRY_KEY, ENTRY_VALUE = 1, 2
CONTROL_FLOW = (b"Loop", b"If", b"Scan", b"SequenceMap")
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5  # wire types
Field = tuple[int, bytes]
Shape = Mapping[str, tuple[Dimension, ...]]


def check_graph(path: Path, listed: Collection[str]) -> None:
    """Raises IntegrityError on control flow, which may run without end, on functions, and on weights in a
    file that is not one of `listed`. The exporter writes none of them.
    """
    try:
        if (size := path.stat().st_size) > MAX_GRAPH_BYTES:
            raise ValueError(f"it has {size} bytes, at most {MAX_GRAPH_BYTES} without its weights")
        for number, value in _fields(path.read_bytes()):
            if number == MODEL_FUNCTIONS:
                raise ValueError("it has functions; exports have none")
            if number == MODEL_GRAPH:
                _check_nodes(value, listed)
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path}: not a graph of an export: {error}; export the bundle again") from None


def _check_nodes(graph: bytes, listed: Collection[str]) -> None:
    for number, value in _fields(graph):
        if number == GRAPH_NODE:
            _check_node(value)
        if number == GRAPH_SPARSE_INITIALIZER:
            raise ValueError("it has sparse weights; exports have none")
        for location in _external_files(value) if number == GRAPH_INITIALIZER else ():
            if location not in listed:
                raise ValueError(f"the manifest does not list {location[:100]!r}, where its weights are")


def _check_node(node: bytes) -> None:
    for number, value in _fields(node):
        if number == NODE_OP_TYPE and value in CONTROL_FLOW:
            raise ValueError("it has control flow; exports have none")
        for part, content in _fields(value) if number == NODE_ATTRIBUTE else ():
            if part in (ATTRIBUTE_GRAPH, ATTRIBUTE_GRAPHS):
                raise ValueError("it has control flow; exports have none")
            if part in (ATTRIBUTE_SPARSE_TENSOR, ATTRIBUTE_SPARSE_TENSORS):
                raise ValueError("it has sparse weights; exports have none")
            if part in (ATTRIBUTE_TENSOR, ATTRIBUTE_TENSORS) and list(_external_files(content)):
                raise ValueError("an attribute of a node is in another file; exports have no such attributes")


def _external_files(tensor: bytes) -> Iterator[str]:
    """Names of the files that hold a tensor."""
    for number, value in _fields(tensor):
        if number == TENSOR_EXTERNAL_DATA:
            entry = dict(_fields(value))
            if entry.get(ENTRY_KEY) == b"location":
                yield entry.get(ENTRY_VALUE, b"").decode("utf-8", "replace")


def _fields(message: bytes) -> Iterator[Field]:
    """Number and content of each field; the content is empty unless the field holds bytes."""
    place = 0
    while place < len(message):
        start = place
        key, place = _varint(message, place)
        number, kind = key >> 3, key & 7
        # another reader may understand a number that is too large, or is written in more bytes than needed
        if not 0 < number < 2**29 or place - start > (key.bit_length() + 6) // 7:
            raise ValueError("the number of a field is not written as the format says")
        size = {FIXED_64: 8, FIXED_32: 4}.get(kind, 0)
        if kind == VARINT:
            _, place = _varint(message, place)
        elif kind == BYTES:
            size, place = _varint(message, place)
        elif not size:
            raise ValueError(f"a field of wire type {kind}")
        if place + size > len(message):
            raise ValueError("it is truncated")
        yield number, message[place : place + size] if kind == BYTES else b""
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(message) or shift > 63:
            raise ValueError("it is truncated")
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place


def check_session(session: Any, path: Path, entries: Collection[ComponentEntry]) -> None:
    """Raises IntegrityError if a session does not have the inputs and outputs of the components.

    Names and fixed sizes are compared, except axis 0, the batch.
    """
    for entry in entries:
        signature = entry.signature
        states = {state.name: state.shape for state in signature.states}
        inputs = {spec.name: spec.shape for spec in signature.inputs}
        outputs = {spec.name: spec.shape for spec in signature.outputs}
        inputs |= {ONNX_PAST + name: shape for name, shape in states.items()}
        outputs |= {ONNX_PRESENT + name: shape for name, shape in states.items()}
        _compare(f"{path}: input", inputs, session.get_inputs(), entry.name)
        _compare(f"{path}: output", outputs, session.get_outputs(), entry.name)


def _compare(what: str, expected: Shape, values: Collection[Any], component: str) -> None:
    found = {value.name: value.shape for value in values}
    for name in sorted({*expected, *found}):
        if not _shapes_match(expected.get(name), found.get(name)):
            raise IntegrityError(
                f"{what} {name} is {found.get(name, 'missing')}, the manifest says "
                f"{list(expected[name]) if name in expected else 'nothing of it'} for {component}; "
                "export the bundle again"
            )


def _shapes_match(expected: tuple[Dimension, ...] | None, found: list[Any] | None) -> bool:
    if expected is None or found is None or len(expected) != len(found):
        return False
    pairs = list(zip(expected, found, strict=True))[1:]
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
