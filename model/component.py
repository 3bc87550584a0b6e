"""`Component`: one callable part of a model, as data. A family yields components, and export walks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import nn

from bundle.spec import Signature


@dataclass(frozen=True)
class Component:
    """A callable part of a model.

    `module` is pure: `forward(*inputs, *states) -> (*outputs, *states)`, so that each target keeps states in its own way.
    `graph` names what is lowered together: two components of one graph are two entry points of it and share weights and
    states. `example(seed, **dims)` returns inputs with the named dimensions fixed.
    `batched`: axis 0 of every input, output and state, here 1, may be larger; the rows are independent of each other.
    """

    name: str
    graph: str
    module: nn.Module
    signature: Signature
    example: Callable[..., dict[str, np.ndarray]]
    purpose: str = ""
    batched: bool = False
