"""Seeded changes of bytes, JSON documents, protobuf messages and safetensors files."""

import copy
import json
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    2**16,
    10**6,
    2**31 - 1,
    2**31,
    2**32,
    2**40,
    2**63,
    2**64,
    -(2**31),
    10**30,
]
FLOATS = [0.0, -1.0, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), 0.5]
TEXTS = [
    "",
    " ",
    ".",
    "..",
    "/",
    "../../etc/passwd",
    "/dev/zero",
    "a" * 300,
    "x" * 100_000,
    "\x1b[31mred\x1b[0m",
    "\x00",
    "a\nb",
    "\u202etxt",
    "\ud800",
    "é",
    "float16",
    "int64",
    "-1",
    "NaN",
    "%s%n{0}",
]


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def hostile_value(rng: random.Random) -> Any:
    kinds: tuple[Callable[[], Any], ...] = (
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice(NUMBERS),
        lambda: rng.choice(FLOATS),
        lambda: rng.choice(TEXTS),
        lambda: rng.choice([None, True, False, [], {}, [[]], [None], {"": None}]),
        lambda: _nested(rng.choice([2, 50, 300])),
        lambda: list(range(rng.choice([1, 5, 5000]))),
    )
    return rng.choice(kinds)()


def _places(document: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a JSON document."""
    found, todo = [], [document]
    while todo:
        container = todo.pop()
        pairs = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in pairs:
            found.append((container, key))
            if isinstance(value, dict | list):
                todo.append(value)
    return found


def mutate_json(rng: random.Random, document: Any) -> Any:
    """A copy with one to three changes. A list of JSON values is changed in the same way as a document."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        places = _places(document)
        if not places:
            return hostile_value(rng)
        container, key = _choose(rng, places)
        value = container[key]
        change = rng.choice(["set", "set", "near", "near", "delete", "rename", "double", "swap"])
        if change == "near":
            container[key] = _near(rng, value)
        elif change == "delete":
            del container[key]
        elif change == "rename" and isinstance(container, dict):
            container[rng.choice([str(key) + "_", rng.choice(TEXTS)])] = container.pop(key)
        elif change == "double" and isinstance(container, list):
            container.insert(key, copy.deepcopy(value))
        elif change == "swap":
            other, place = rng.choice(places)
            if not isinstance(value, dict | list) and not isinstance(other[place], dict | list):
                container[key], other[place] = other[place], value
        else:
            container[key] = hostile_value(rng)
    return document


def _choose(rng: random.Random, places: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """A place. Those of long lists and of tables of hashes are as likely as one place of another kind."""
    small = [place for place in places if len(place[0]) <= 30]
    return rng.choice(small if small and rng.random() < 0.8 else places)


def _near(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return rng.choice([not value, int(bool(value)), str(value)])
    if isinstance(value, int):
        return rng.choice([value + 1, value - 1, value * 2, value // 2, -value, float(value), str(value)])
    if isinstance(value, float):
        return rng.choice([value * 2, -value, value * 1e30, int(value) if abs(value) < 1e30 else 0])
    if isinstance(value, str):
        middle = rng.randrange(len(value) + 1)
        return rng.choice(
            [value[:middle], value + "x", value.upper(), value[:middle] + "\x1b" + value[middle:]]
        )
    return [value]


def write_json(rng: random.Random, document: Any) -> bytes:
    """JSON text; now and then with a duplicate key, damaged bytes, or other spaces."""
    text = json.dumps(document, indent=rng.choice([None, 1]))
    if isinstance(document, dict) and document and rng.random() < 0.05:
        key = rng.choice(list(document))
        text = "{" + f"{json.dumps(key)}: {json.dumps(hostile_value(rng))}," + text.lstrip()[1:]
    content = text.encode("utf-8", "surrogatepass")
    return mutate_bytes(rng, content) if rng.random() < 0.1 else content


def mutate_bytes(rng: random.Random, content: bytes, start: int = 0, end: int | None = None) -> bytes:
    """A copy with some changes between two offsets, or truncated, or longer."""
    data = bytearray(content)
    end = min(end or len(data), len(data))
    if end - start < 8:
        return bytes(rng.randbytes(rng.choice([0, 1, 100])))
    change = rng.choice(["bits", "bits", "words", "words", "words", "truncate", "insert", "zeros", "random"])
    if change == "truncate":
        return bytes(data[: rng.randrange(start, end)])
    if change == "insert":
        place = rng.randrange(start, end)
        data[place:place] = rng.randbytes(rng.choice([1, 4, 64]))
        return bytes(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        place = rng.randrange(start, end)
        if change == "bits":
            data[place] ^= 1 << rng.randrange(8)
        elif change == "words":
            _put_word(rng, data, place)
        else:
            length = min(rng.choice([1, 16, 256]), end - place)
            data[place : place + length] = bytes(length) if change == "zeros" else rng.randbytes(length)
    return bytes(data)


def _put_word(rng: random.Random, data: bytearray, place: int) -> None:
    """Replaces an aligned number of 32 bits, or moves it: sizes, offsets and counts of binary formats."""
    place -= place % 4
    if place + 4 > len(data):
        return
    (old,) = struct.unpack_from("<I", data, place)
    value = rng.choice([0, 1, old + 1, old - 1, old + 4, old * 2, 2**31, 2**32 - 1, len(data), len(data) - 4])
    struct.pack_into("<I", data, place, value % 2**32)


def mutate_safetensors(rng: random.Random, content: bytes) -> bytes:
    """Changes the header of a safetensors file as JSON, or the bytes of header or data."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, content)
    (size,) = struct.unpack_from("<Q", content)
    header = json.dumps(mutate_json(rng, json.loads(content[8 : 8 + size]))).encode()
    if rng.random() < 0.7:
        header += b" " * (-len(header) % 8)
    header_length = rng.choice(NUMBERS) % 2**64 if rng.random() < 0.1 else len(header)
    return struct.pack("<Q", header_length) + header + content[8 + size :]


def mutate_message(rng: random.Random, message: Any) -> None:
    """One to three changes in a protobuf message, anywhere below it."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        _mutate_message(rng, message)


def _mutate_message(rng: random.Random, message: Any) -> None:
    while True:
        fields = message.ListFields()
        if not fields:
            return
        descriptor, value = rng.choice(fields)
        is_list = hasattr(value, "append") or hasattr(value, "add")
        if is_list and value:
            if rng.random() < 0.2:
                del value[rng.randrange(len(value))]
                return
            index = rng.randrange(len(value))
            inner = value[index]
            if not hasattr(inner, "ListFields"):
                with suppress(ValueError):
                    value[index] = _field_value(rng, inner)
                return
            if rng.random() < 0.1:
                value.add().CopyFrom(inner)
                return
        elif hasattr(value, "ListFields"):
            inner = value
        elif hasattr(value, "keys"):  # a map
            key = rng.choice(sorted(value))
            inner = value[key]
            if not hasattr(inner, "ListFields") or rng.random() < 0.1:
                del value[key]
                return
        else:
            if rng.random() < 0.15:
                message.ClearField(descriptor.name)
            else:
                with suppress(ValueError):  # a number that the field does not hold
                    setattr(message, descriptor.name, _field_value(rng, value))
            return
        if not inner.ListFields() or rng.random() < 0.05:
            inner.Clear()
            return
        message = inner


def _field_value(rng: random.Random, old: Any) -> Any:
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice([0, 1, 2, 7, old + 1, max(0, old - 1), 2**30, 2**31 - 1])
    if isinstance(old, float):
        return rng.choice(FLOATS)
    if isinstance(old, bytes):
        return mutate_bytes(rng, old) if len(old) >= 8 else rng.randbytes(rng.choice([0, 4, 100]))
    return rng.choice([old + "x", old[:-1], "", "a" * 1000, "../x", "Loop", "If", "\x1b[31m"])
