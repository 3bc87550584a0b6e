"""Exchange of the kernels of modules for the duration of a block."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def exchanged(module: nn.Module, kind: type[nn.Module], attribute: str, value: Any) -> Iterator[None]:
    """Sets `attribute` of every `kind` below `module`, and restores the previous values on exit.

    `value` is of any type, because each `kind` has its own kernels.
    """
    parts = [part for part in module.modules() if isinstance(part, kind)]
    previous = [getattr(part, attribute) for part in parts]
    try:
        for part in parts:
            setattr(part, attribute, value)
        yield
    finally:
        for part, before in zip(parts, previous, strict=True):
            setattr(part, attribute, before)
