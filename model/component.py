"""`Component`: one callable of a model, as data.

A family lists components; export builds, lowers and verifies them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bundle.spec import Signature


@dataclass(frozen=True)
class Component:
    """One callable of a model, without module and weights.

    graph: name of the module that computes it. Components of one graph are entry points of one module at
        different sizes, and share its weights and states. That module is pure:
        `forward(*inputs, *states) -> (*outputs, *states)`.
    example(seed, **dims): inputs by name, of the given sizes.
    batched: axis 0 of every input, output and state may be larger than 1. The rows are independent.
    """

    name: str
    graph: str
    signature: Signature
    example: Callable[..., dict[str, np.ndarray]]
    purpose: str = ""
    batched: bool = False
