"""Modules with shapes and without values."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import init
from torch.overrides import TorchFunctionMode

INITIALISERS = (init.kaiming_uniform_, init.uniform_, init.normal_)


class _WithoutInitialValues(TorchFunctionMode):
    """Leaves out the random values of new modules: on the meta device they take time and set nothing."""

    # Any: the arguments are those of any function of torch
    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        arguments: tuple[Any, ...] = (),
        named: dict[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        if function in INITIALISERS:
            return arguments[0] if arguments else named["tensor"]
        return function(*arguments, **named)


@contextmanager
def shapes_only() -> Iterator[None]:
    """New modules are on the meta device."""
    with torch.device("meta"), _WithoutInitialValues():
        yield
