"""torch's table of ONNX functions for its operators, which its exporter reads again for each graph."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from functools import cache
from typing import Any

from torch.onnx._internal.exporter._registration import ONNXRegistry

_read = ONNXRegistry.from_torchlib


@contextmanager
def registry_read_once() -> Iterator[None]:
    """Lets all exports of a process share one reading, which takes half a second to a second."""
    registry: Any = ONNXRegistry  # Any: a method of it is replaced
    registry.from_torchlib = staticmethod(_copied)
    try:
        yield
    finally:
        registry.from_torchlib = _read


def _copied(opset_version: int) -> ONNXRegistry:
    """The exporter adds the translations of one export to what it gets."""
    original = _of_opset(opset_version)
    registry = copy(original)
    registry.functions = {operator: list(found) for operator, found in original.functions.items()}
    return registry


@cache
def _of_opset(opset_version: int) -> ONNXRegistry:
    return _read(opset_version)
