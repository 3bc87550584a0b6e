"""Seeded changes of files: JSON, safetensors, protobuf messages, and bytes of any other format."""

import copy
import json
import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

NUMBERS = (0, 1, -1, 2, 7, 255, 2**16, 10**6, 2**31 - 1, 2**31, 2**32, 2**40, 2**63, 2**64, -(2**31), 10**30)
FLOATS = (0.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 0.5)
NESTED: Any = json.loads("[" * 300 + "1" + "]" * 300)
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, NESTED, list(range(5000)))
TEXTS: tuple[str, ...] = (
    "",
    " ",
    "..",
    "/",
    "../../etc/passwd",
    "/dev/zero",
    "a" * 300,
    "x" * 100_000,
    "\x1b[31mred",
)
TEXTS += ("\x00", "a\nb", "\u202etxt", "\ud800", "é", "float16", "int64", "-1", "NaN", "%s%n{0}", "Loop")


def hostile_value(rng: random.Random) -> Any:
    return rng.choice(rng.choice((NUMBERS, NUMBERS, FLOATS, TEXTS, OTHERS)))


def mutate_file(rng: random.Random, path: Path, inside: str = "") -> None:
    """Damages a file according to its format. `inside` is the part of a JSON document, as in "job.source"."""
    content = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.9:
        content = _json_bytes(rng, _mutate_part(rng, json.loads(content), inside))
    elif path.suffix == ".safetensors" and rng.random() < 0.7:
        content = _mutate_safetensors(rng, content)
    elif path.suffix in (".onnx", ".mlmodel") and rng.random() < 0.8:
        content = _mutate_program(rng, content, path.suffix)
    elif path.suffix == ".pte":  # its header, its flatbuffer, and the segments behind it
        program = int.from_bytes(content[16:24], "little")
        content = mutate_bytes(rng, content, *rng.choice([(0, 64), (32, program), (program, len(content))]))
    elif path.suffix == ".mlirb":  # damage behind its first 20 KB is mostly in weights
        content = mutate_bytes(rng, content, 0, rng.choice([None, 20_000, 20_000]))
    else:
        content = mutate_bytes(rng, content)
    path.write_bytes(content)


def mutate_bytes(rng: random.Random, content: bytes, start: int = 0, end: int | None = None) -> bytes:
    """A copy with some changes between two offsets, or truncated, or longer."""
    data = bytearray(content)
    end = min(end or len(data), len(data))
    if end - start < 8:
        return rng.randbytes(rng.choice([0, 1, 100]))
    change = rng.choice(["bits", "words", "words", "truncate", "insert", "zeros", "random"])
    place = rng.randrange(start, end)
    if change == "truncate":
        return bytes(data[:place])
    if change == "insert":
        return bytes(data[:place] + rng.randbytes(rng.choice([1, 4, 64])) + data[place:])
    for _ in range(rng.choice([1, 1, 2, 8])):
        place = rng.randrange(start, end)
        if change == "bits":
            data[place] ^= 1 << rng.randrange(8)
        elif change == "words":
            _mutate_word(rng, data, min(place - place % 4, len(data) - 4))
        else:
            length = min(rng.choice([1, 16, 256]), end - place)
            data[place : place + length] = bytes(length) if change == "zeros" else rng.randbytes(length)
    return bytes(data)


def _mutate_word(rng: random.Random, data: bytearray, place: int) -> None:
    """Replaces or moves an aligned number of 32 bits: sizes, offsets and counts of binary formats."""
    (old,) = struct.unpack_from("<I", data, place)
    value = rng.choice([0, 1, old + 1, old - 1, old + 4, old * 2, 2**31, 2**32 - 1, len(data), len(data) - 4])
    struct.pack_into("<I", data, place, value % 2**32)


def _mutate_part(rng: random.Random, document: Any, inside: str) -> Any:
    *keys, last = inside.split(".")
    if not last:
        return mutate_json(rng, document)
    part = document
    for key in keys:
        part = rng.choice(part[key]) if isinstance(part[key], list) else part[key]
    part[last] = mutate_json(rng, part[last])
    return document


def mutate_json(rng: random.Random, document: Any) -> Any:
    """A copy with one to three changes. Long lists and tables are changed as often as any other part."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        places = list(_places(document))
        small = [place for place in places if len(place[0]) <= 30]
        if not places:
            return hostile_value(rng)
        container, key = rng.choice(small if small and rng.random() < 0.8 else places)
        change = rng.choice(["set", "set", "near", "near", "delete", "rename", "double"])
        if change == "near":
            container[key] = _near(rng, container[key])
        elif change == "delete":
            del container[key]
        elif change == "rename" and isinstance(container, dict):
            container[rng.choice([f"{key}_", rng.choice(TEXTS)])] = container.pop(key)
        elif change == "double" and isinstance(container, list):
            container.insert(key, copy.deepcopy(container[key]))
        else:
            container[key] = copy.deepcopy(hostile_value(rng))
    return document


def _places(document: Any) -> Any:
    """Every (container, key) of a JSON document."""
    todo = [document]
    while todo:
        container = todo.pop()
        for key, value in container.items() if isinstance(container, dict) else enumerate(container):
            yield container, key
            if isinstance(value, dict | list):
                todo.append(value)


def _near(rng: random.Random, value: Any) -> Any:
    """A value that is nearly right."""
    match value:
        case bool() | None:
            return rng.choice([not value, int(bool(value)), str(value)])
        case int():
            return rng.choice([value + 1, value - 1, value * 2, value // 2, -value, float(value), str(value)])
        case float():
            return rng.choice([value * 2, -value, value * 1e30])
        case str():
            middle = rng.randrange(len(value) + 1)
            return rng.choice([value[:middle], f"{value}x", f"{value[:middle]}\x1b{value[middle:]}"])
    return [value]


def _json_bytes(rng: random.Random, document: Any) -> bytes:
    """JSON, now and then with a duplicate key or damaged bytes."""
    text = json.dumps(document, indent=rng.choice([None, 1]))
    if isinstance(document, dict) and document and rng.random() < 0.05:
        key = json.dumps(rng.choice(list(document)))
        text = "{" + f"{key}: {json.dumps(hostile_value(rng))}," + text.lstrip()[1:]
    content = text.encode("utf-8", "surrogatepass")
    return mutate_bytes(rng, content) if rng.random() < 0.1 else content


def _mutate_safetensors(rng: random.Random, content: bytes) -> bytes:
    """Changes the header as JSON, and now and then its length."""
    (size,) = struct.unpack_from("<Q", content)
    header = json.dumps(mutate_json(rng, json.loads(content[8 : 8 + size]))).encode()
    length = rng.choice(NUMBERS) % 2**64 if rng.random() < 0.1 else len(header)
    return struct.pack("<Q", length) + header + content[8 + size :]


def _mutate_program(rng: random.Random, content: bytes, suffix: str) -> bytes:
    """Changes an ONNX model or a Core ML program as a protobuf message."""
    if suffix == ".onnx":
        import onnx

        message: Any = onnx.ModelProto.FromString(content)
        inner = message.graph
    else:
        from coremltools.proto import Model_pb2

        message = Model_pb2.Model.FromString(content)
        inner = message.mlProgram
    for _ in range(rng.choice([1, 1, 2, 3])):
        _mutate_message(rng, inner if rng.random() < 0.9 else message)
    changed: bytes = message.SerializeToString()
    return changed


def _mutate_message(rng: random.Random, message: Any) -> None:
    """Goes down to a random field. Deletes it, doubles it or changes its value."""
    while fields := message.ListFields():
        descriptor, value = rng.choice(fields)
        is_list, is_map = hasattr(value, "append") or hasattr(value, "add"), hasattr(value, "keys")
        key = rng.choice(sorted(value)) if is_map else rng.randrange(len(value)) if is_list else None
        inner = value if key is None else value[key]
        is_message = hasattr(inner, "ListFields")
        if rng.random() < 0.15:
            if key is None:
                message.ClearField(descriptor.name)
            elif is_list and is_message and rng.random() < 0.3:
                value.add().CopyFrom(inner)
            else:
                del value[key]
            return
        if not is_message:
            with suppress(ValueError, TypeError):  # a value that the field does not hold
                new = _field_value(rng, inner)
                if key is None:
                    setattr(message, descriptor.name, new)
                else:
                    value[key] = new
            return
        message = inner


def _field_value(rng: random.Random, old: Any) -> Any:
    match old:
        case bool():
            return not old
        case int():
            return rng.choice([0, 1, 2, 7, old + 1, max(0, old - 1), 2**30, 2**31 - 1])
        case float():
            return rng.choice(FLOATS)
        case bytes():
            return mutate_bytes(rng, old)
    return rng.choice([f"{old}x", old[:-1], "", "a" * 1000, "../x", "Loop", "If", "\x1b[31m"])
