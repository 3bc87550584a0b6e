"""The text format of protobuf messages, as far as `config.pbtxt` needs it."""

import json
from typing import Any

# Name and value of a field. A tuple of fields is a message.
Field = tuple[str, Any]  # Any: the type is recursive


class Name(str):
    """A value of an enumeration, such as TYPE_FP32. It is written without quotes."""


def as_text(message: tuple[Field, ...], indent: str = "") -> str:
    """One field per line. A repeated field has several entries, or a list of integers."""
    return "".join(f"{indent}{name}{_value(value, indent)}\n" for name, value in message)


def _value(value: Any, indent: str) -> str:
    if isinstance(value, tuple):
        return f" {{\n{as_text(value, indent + '  ')}{indent}}}"
    if isinstance(value, list):
        return f": [{', '.join(map(str, value))}]"
    if isinstance(value, Name):
        return f": {value}"
    return f": {json.dumps(value)}"  # texts, numbers, true and false are written as in JSON
